"""What is generated: as long as asked for, the same from the same seed, with one right answer."""

import json
import re
from importlib.util import find_spec
from itertools import pairwise

import pytest

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.prompts import Prompts
from arkv_sglang.eval.tasks import OWN, TASKS, chosen_tasks
from arkv_sglang.eval.tasks.needles import NOUNS, NUM_DISTRACTORS, hide
from arkv_sglang.eval.tasks.tracking import HOPS
from tests.unit.eval.fakes import WordTokenizer, material, said, texts

# Of a prompt, the share that may be missing: its pieces are as long as a sentence or a line.
SHORT_BY = 0.12
LENGTH = 700


def made(name, count=6, **settings):
    found = material(**({"length": LENGTH} | settings))
    return found, list(TASKS[name].make(found, count))


@pytest.mark.parametrize("name", OWN)
def test_length_and_seed(name):
    found, samples = made(name)
    assert [sample.number for sample in samples] == list(range(6))
    assert {sample.task for sample in samples} == {name}
    for sample in samples:
        # A summary is of a text that may be shorter.
        assert len(sample.prompt) <= LENGTH
        assert name == "summary" or len(sample.prompt) >= (1 - SHORT_BY) * LENGTH
    # Token ids are those of one tokenizer, in the order of their first use.
    again = list(TASKS[name].make(found, 3))
    assert again == samples[:3]
    other, shuffled = made(name, seed=1)
    assert [said(other, each) for each in shuffled] != [said(found, each) for each in samples]


@pytest.mark.parametrize("name", ["needle", "needle-multi-key", "needle-later"])
def test_needles(name):
    found, samples = made(name, count=9)
    forms = [sample.about["form"] for sample in samples]
    assert forms == ["digits", "words", "uuid"] * 3
    assert len({len(sample.answers[0]) for sample in samples}) > 3
    depths = sorted(sample.about["depth"] for sample in samples)
    assert all(later - earlier < 0.3 for earlier, later in pairwise(depths))
    for sample in samples:
        text = said(found, sample)
        noun = NOUNS[sample.about["form"]]
        (answer,) = sample.answers
        needle = f"for {sample.about['key']} is: {answer}."
        assert text.count(needle) == 1 and text.count(answer) == 1
        assert text.endswith(f"The special magic {noun} for {sample.about['key']} is:")
        others = re.findall(r"for (\S+) is: (\S+)\.", text)
        assert len(others) == 1 + NUM_DISTRACTORS * (name == "needle-multi-key")
        assert len(set(others)) == len({value for _, value in others}) == len(others)


def test_near_misses_share_a_word_with_the_key():
    found, samples = made("needle-multi-key")
    for sample in samples:
        key = sample.about["key"].split("-")
        keys = re.findall(r"for (\S+) is: ", said(found, sample))
        assert len(set(keys)) == len(keys)
        assert all(set(key) & set(each.split("-")) for each in keys)


def test_a_needle_is_where_it_is_said_to_be():
    text = [f" s{n}." for n in range(10)]
    assert hide(text, 4, [" X."], [0.5]) == " s0. s1. X. s2. s3."
    assert hide(text, 4, [" X.", " Y."], [0.999, 0.0]) == " Y. s0. s1. s2. s3. X."
    found, samples = made("needle", count=5)
    for sample in samples:
        whole = said(found, sample)
        place = whole.index(sample.answers[0]) / len(whole)
        # The frame and the question take some of it.
        assert place == pytest.approx(sample.about["depth"], abs=0.2)


def test_the_later_question_begins_with_the_document():
    found, samples = made("needle-later")
    for sample in samples:
        (document,) = sample.before
        assert sample.prompt[: len(document)] == document
        assert sample.answers[0] in found.prompts.tokenizer.decode(document)
        rest = found.prompts.tokenizer.decode(sample.prompt[len(document) :])
        assert sample.about["key"] in rest and sample.answers[0] not in rest
        assert sample.about["key"] not in found.prompts.tokenizer.decode(document[:12])


def test_another_text_comes_between():
    found, samples = made("needle-demoted")
    for sample in samples:
        document, between = sample.before
        assert sample.prompt[: len(document)] == document
        assert len(between) == LENGTH // 2 and between[:40] != document[:40]
        assert sample.answers[0] not in found.prompts.tokenizer.decode(between)


def test_variable_tracking():
    found, samples = made("variable-tracking")
    for sample in samples:
        text = said(found, sample)
        question = text[text.rindex("Memorize") :]
        steps = re.findall(r"VAR (\w+) = (VAR )?(\w+)\n", question)
        assert [name for name, *_ in steps] == list(sample.answers)
        assert len(set(sample.answers)) == HOPS + 1
        value = steps[0][2]
        assert [source for *_, source in steps] == [value, *sample.answers[:-1]]
        assert text.endswith(f"assigned the value {value}, they are:")


def test_common_words():
    found, samples = made("common-words", length=900)
    for sample in samples:
        listed = said(found, sample)
        words = re.findall(r"\d+\. (\w+)", listed[listed.rindex("Below") :])
        assert {word for word in words if words.count(word) == 6} == set(sample.answers)
        assert len(sample.answers) == 10
        assert {words.count(word) for word in words} == {1, 6}


def test_frequent_words():
    found, samples = made("frequent-words")
    for sample in samples:
        text = said(found, sample)
        words = text[text.index("coded words. ") :].split("\nQuestion")[0].split()[2:]
        counts = [words.count(word) for word in ("...", *sample.answers)]
        assert counts == sorted(counts, reverse=True) and counts[3] > 0
        rest = {words.count(word) for word in words} - set(counts)
        assert max(rest, default=0) <= counts[3]


def test_key_value():
    found, samples = made("key-value")
    for sample in samples:
        text = said(found, sample)
        pairs = json.loads(text[text.index("{") : text.index("}") + 1])
        assert pairs[sample.about["key"]] == sample.answers[0]
        assert len(pairs) == sample.about["pairs"] == len(set(pairs.values()))
        assert text.endswith(f'"{sample.about["key"]}" is "')


def test_continuation_is_what_follows():
    found, samples = made("continuation", has_chat=False)
    whole = "\n\n".join(text.text for text in found.texts)
    for sample in samples:
        assert len(sample.prompt) == LENGTH and len(sample.forced) == sample.new_tokens
        decode = found.prompts.tokenizer.decode
        assert decode(sample.prompt[:1]) == "<s>"
        joined = decode([*sample.prompt[1:], *sample.forced])
        assert all(part.strip() in whole for part in joined.split("\n\n"))


def test_a_summary_has_a_reference_where_the_whole_text_is_there():
    found, samples = made("summary", count=8, length=3000)
    by_text = {sample.about["text"]: sample for sample in samples[:6]}
    assert len(by_text) == 6
    assert by_text["text-0"].answers == ("A short summary.",)
    assert by_text["text-1"].answers == ()
    assert said(found, by_text["text-2"]).count(found.texts[2].text) == 1
    # A text that comes again begins elsewhere, and its summary is not one of that.
    assert samples[6].about == {"text": samples[0].about["text"], "whole": False}
    assert samples[6].prompt != samples[0].prompt
    _, cut = made("summary", length=200)
    assert all(sample.answers == () for sample in cut)


def test_what_is_too_short_is_refused():
    with pytest.raises(ConfigError, match=r"--length must be at least .* got 20"):
        made("needle", length=20)
    with pytest.raises(ConfigError, match="at least 10064 tokens for continuation, got"):
        made("continuation", length=10_000)
    with pytest.raises(ConfigError, match="different words to fill a prompt of 9000 tokens"):
        made("common-words", length=9000)
    with pytest.raises(ConfigError, match="must have at least 7 different words"):
        made("needle-multi-key", texts=texts(1, 0))


def test_gsm8k(tmp_path):
    path = tmp_path / "test.jsonl"
    lines = [
        {"question": f"How many is {n}?", "answer": f"It is.\n#### 1,{n:03}"} for n in range(9)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found, samples = made("gsm8k", gsm8k=path, has_chat=False, length=9)
    assert len(samples) == 4
    assert sorted(sample.answers[0] for sample in samples) == ["1005", "1006", "1007", "1008"]
    for sample in samples:
        text = said(found, sample)
        assert text.count("####") == 5 and text.endswith("?\nAnswer:")
    path.write_text('{"question": "Why?"}\n')
    with pytest.raises(
        ConfigError, match=r"--gsm8k .* question, answer on each line, got .* line 1"
    ):
        made("gsm8k", gsm8k=path)
    with pytest.raises(ConfigError, match="--gsm8k must name a text file that can be read"):
        made("gsm8k", gsm8k=tmp_path / "absent")


def test_tasks_of_packages_that_are_not_there(tmp_path):
    for name, package in (("ruler-qa_1", "long_context_eval"), ("longbench", "lm_eval")):
        if find_spec(package):
            continue
        path = tmp_path / "hotpotqa.jsonl"
        path.write_text("{}\n")
        with pytest.raises(ConfigError, match=r"needs the package \S+, which is not installed"):
            made(name, longbench=[path])


def test_tasks_by_name():
    own = chosen_tasks("own", 16)
    assert [task.name for task in own] == list(OWN) and set(own.values()) == {16}
    some = chosen_tasks("summary, needle:50", 4)
    assert {task.name: count for task, count in some.items()} == {"summary": 4, "needle": 50}
    assert len(chosen_tasks("ruler:2", 4)) == 13
    with pytest.raises(ConfigError, match=r"--tasks must be of own, ruler and .* got 'needel'"):
        chosen_tasks("needel", 1)
    with pytest.raises(ConfigError, match="number from 1 on behind the colon, got 'needle:0'"):
        chosen_tasks("needle:0", 1)


def test_prompts_without_a_chat_template():
    prompts = Prompts(WordTokenizer(has_chat=False), 50)
    text = prompts.tokenizer.decode(prompts.chat("Who?", "It is"))
    assert text == "<s>Who? It is"
    ids = list(range(100))
    assert prompts.without_middle(ids) == [*range(25), *range(75, 100)]
    assert prompts.without_middle(ids, 3) == [0, 98, 99]
    assert prompts.without_middle(ids[:50]) == ids[:50]
