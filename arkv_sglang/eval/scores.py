"""How good an answer is, from 0 to 1."""

from __future__ import annotations

import re

from arkv_sglang.eval.sample import Outcome, Sample
from arkv_sglang.report.similarity import rouge_l, words

_RUN = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_COMMA_IN_NUMBER = re.compile(r"(?<=\d),(?=\d{3})")
# As lm-eval's flexible extraction finds them in an answer to GSM8K.
_NUMBER = re.compile(r"-?[$\d.,]*\d")


def score_recall(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """``recall``: of the characters of the answer, those that stand at their place in that word of
    the output where most do. ``exact``: whether the answer is one of the words. The first again by
    the form of the answer, if it has one: models differ in what they can copy."""
    answer = sample.answers[0].lower()
    found = _RUN.findall(_COMMA_IN_NUMBER.sub("", outcome.output.lower()))
    hits = (sum(a == b for a, b in zip(word, answer, strict=False)) for word in found)
    share = max(hits, default=0) / len(answer)
    by_form = {sample.about["form"]: share} if "form" in sample.about else {}
    return {"recall": share, "exact": float(answer in found), **by_form}


def score_all(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """The share of the answers that are in the output: RULER's `string_match_all`."""
    found = [has(outcome.output, answer) for answer in sample.answers]
    return {"match_all": sum(found) / len(found), "exact": float(all(found))}


def score_any(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """Whether one of the answers is in the output: RULER's `string_match_part`."""
    return {"match_any": float(any(has(outcome.output, answer) for answer in sample.answers))}


def has(output: str, answer: str) -> bool:
    return answer.lower() in output.lower()


def last_number(text: str) -> str | None:
    """Without signs of currency and separators of thousands."""
    found = _NUMBER.findall(text)
    return re.sub(r"[$,]", "", found[-1]) if found else None


def score_number(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """Whether the last number is the answer's: GSM8K as lm-eval's flexible extraction reads it."""
    found = last_number(outcome.output)
    return {"exact": float(found is not None and _is_same(found, sample.answers[0]))}


def _is_same(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


def score_summary(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """ROUGE-L with the summary of full KV, and with that of people where there is one."""
    found = words(outcome.output)
    figures = {"rouge_l": rouge_l(found, words(full_kv.output))}
    if sample.answers:
        figures["rouge_l_reference"] = rouge_l(found, words(sample.answers[0]))
    return figures


def score_measured(sample: Sample, outcome: Outcome, full_kv: Outcome) -> dict[str, float]:
    """What the engine measured."""
    return dict(outcome.measured)
