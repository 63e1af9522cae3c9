"""Stages of documents in several requests, with one token per character."""

import itertools
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.batch.config import StrategyConfig
from arkv_sglang.batch.split import CannotSplit, Split
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.task import Step, Task, task_of
from arkv_sglang.batch.types import Document, Request, Result

from .fakes import FakePrompts

Answer = Callable[[str], str]


def prompt(step: Step) -> str:
    return "".join(map(chr, step.request.input_ids))


def split(
    text: str, kind: str, limit: int, new_tokens: int = 20, prompts: Any = None, **settings: Any
) -> Task:
    strategy = Strategy(StrategyConfig(kind=kind, **settings), prompts or FakePrompts())
    whole = task_of(Document("d", text), FakePrompts())
    assert isinstance(whole, Task)
    return strategy.split(whole, limit, new_tokens)


def finish(task: Task, answer: Answer) -> list[list[Step]]:
    """Every stage of a task whose requests are answered by their prompts."""
    stages = []
    while steps := task.advance():
        assert not task.has_answers
        for step in steps:
            task.take(step, result(answer(prompt(step)), step.request), "engine-0")
        assert task.has_answers
        stages.append(list(steps))
    return stages


def result(text: str, request: Request, reason: str = "stop") -> Result:
    return Result(text, request.prompt_tokens, len(text), 1, reason, 0.1, 0.2, {"peak_rows": 0})


def words(count: int) -> str:
    return " ".join(f"Word{n}." for n in range(count))


def test_summaries_of_chunks_are_combined_until_one_is_left() -> None:
    text = words(400)
    task = split(text, "map_reduce", limit=120)
    stages = finish(task, lambda prompt: f"[{len(prompt)}]" + "s" * 15)
    assert [steps[0].level for steps in stages] == list(range(len(stages)))
    assert len(stages) > 3 and len(stages[-1]) == 1
    assert [len(steps) for steps in stages] == sorted({len(s) for s in stages}, reverse=True)
    assert all(step.request.prompt_tokens <= 120 for steps in stages for step in steps)
    for steps in stages:
        assert [step.index for step in steps] == list(range(len(steps)))
    assert (stages[-1][0].begin, stages[-1][0].end) == (0, len(text))
    assert all(prompt(step).startswith("map||Word") for step in stages[0])
    assert all(prompt(step).startswith("combine||[") for steps in stages[1:] for step in steps)
    row = task.answered()
    assert (row.status, row.strategy, row.n_chunks) == ("ok", "map_reduce", len(stages[0]))
    assert (row.truncated, row.n_cut_short) == (False, 0)
    requests = [step.request for steps in stages for step in steps]
    assert row.prompt_tokens == sum(request.prompt_tokens for request in requests)
    assert row.cached_tokens == len(requests)
    assert row.summary == f"[{len(prompt(stages[-1][0]))}]" + "s" * 15


def test_a_summary_grows_chunk_by_chunk() -> None:
    text = words(60)
    task = split(text, "refine", limit=120)
    stages = finish(task, lambda prompt: prompt[-9:])
    assert {len(steps) for steps in stages} == {1}
    prompts = [prompt(step) for [step] in stages]
    assert prompts[0].startswith("map||Word0.")
    for before, after in itertools.pairwise(prompts):
        assert after.startswith(f"refine|{before[-9:]}|Word")
    assert all(len(prompt) <= 120 for prompt in prompts)
    row = task.answered()
    assert (row.strategy, row.n_chunks) == ("refine", len(stages))
    assert row.summary == prompts[-1][-9:] == text[-9:]


@pytest.mark.parametrize("kind", ["map_reduce", "refine"])
@settings(max_examples=100, deadline=None)
@given(
    text=st.text(min_size=1, max_size=400).filter(str.strip),
    limit=st.integers(60, 200),
    overlap=st.integers(0, 15),
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=5),
)
def test_every_document_ends_and_is_seen_whole(
    kind: str, text: str, limit: int, overlap: int, lengths: list[int]
) -> None:
    task = split(text, kind, limit, overlap_tokens=overlap)
    turn = iter(range(10**6))
    stages = finish(task, lambda prompt: "s" * lengths[next(turn) % len(lengths)])
    chunks = [step for steps in stages for step in steps if step.level == 0]
    assert all(step.request.prompt_tokens <= limit for steps in stages for step in steps)
    seen = 0
    for chunk in chunks:
        assert not text[seen : chunk.begin].strip()
        assert prompt(chunk).endswith(text[chunk.begin : chunk.end])
        seen = chunk.end
    assert not text[seen:].strip()
    assert task.answered().n_chunks == len(chunks)


def test_a_summary_longer_than_was_left_room_for_cuts_the_next_chunk_again() -> None:
    text = words(60)
    task = split(text, "refine", limit=120, new_tokens=5)
    stages = finish(task, lambda prompt: "s" * 40)
    assert all(step.request.prompt_tokens <= 120 for [step] in stages)
    assert not text[stages[-1][0].end :].strip()
    assert task.answered().n_chunks == len(stages)
    assert stages[-1][0].name == f"chunk {len(stages)} of {len(stages)}"


class Shared(FakePrompts):
    """Tokens are not additive: a template may use its text twice, or join with it."""

    def __init__(self, times: int, extra: int) -> None:
        self.times, self.extra = times, extra

    def build_part(self, document: Document, part: str, text: str, summary: str = "") -> Request:
        ids = array("I", map(ord, text)) * self.times
        return Request(document.doc_id, ids + array("I", [0]) * (self.extra if text else 1))


@pytest.mark.parametrize(("times", "extra"), [(1, 9), (2, 1), (3, 30)])
def test_chunks_shrink_until_their_prompts_fit(times: int, extra: int) -> None:
    task = split(words(100), "map_reduce", limit=100, prompts=Shared(times, extra))
    steps = task.advance()
    assert 60 < max(step.request.prompt_tokens for step in steps) <= 100


@pytest.mark.parametrize(
    ("kind", "limit", "chunk_tokens", "overlap", "sentence"),
    [
        (
            "map_reduce",
            4,
            None,
            0,
            "two summaries of sampling.max_new_tokens (20) beside strategy.combine_template (9 "
            "tokens), got 4 tokens, which is what an engine has beside sampling.max_new_tokens; "
            "lower sampling.max_new_tokens or shorten the template or prompt.system",
        ),
        (
            "map_reduce",
            50,
            50,
            0,
            "two summaries of sampling.max_new_tokens (20) beside strategy.combine_template (9 "
            "tokens), got 50 tokens, which is what strategy.chunk_tokens allows; raise "
            "strategy.chunk_tokens or lower sampling.max_new_tokens or shorten the template or "
            "prompt.system",
        ),
        (
            "map_reduce",
            60,
            60,
            55,
            "more text than strategy.overlap_tokens (55) beside strategy.map_template (5 tokens), "
            "got 60 tokens, which is what strategy.chunk_tokens allows; raise "
            "strategy.chunk_tokens or shorten the template or prompt.system or lower "
            "strategy.overlap_tokens",
        ),
        (
            "refine",
            25,
            25,
            0,
            "text beside strategy.refine_template (8 tokens) and the summary so far "
            "(sampling.max_new_tokens, 20), got 25 tokens, which is what strategy.chunk_tokens "
            "allows; raise strategy.chunk_tokens or lower sampling.max_new_tokens or shorten the "
            "template or prompt.system",
        ),
    ],
)
def test_a_prompt_without_room_is_named_before_anything_is_cut(
    kind: str, limit: int, chunk_tokens: int | None, overlap: int, sentence: str
) -> None:
    class Uncut(FakePrompts):
        def token_starts(self, text: str) -> range:
            assert len(text) < 5, "it is cut"
            return super().token_starts(text)

    settings = {"chunk_tokens": chunk_tokens, "overlap_tokens": overlap}
    task = split(words(30), kind, limit, prompts=Uncut(), **settings)
    with pytest.raises(CannotSplit) as caught:
        task.advance()
    assert str(caught.value) == f"a prompt must have room for {sentence}"


def test_one_chunk_needs_no_room_for_two_summaries() -> None:
    task = split("x" * 90, "map_reduce", limit=95, new_tokens=60)
    assert [len(steps) for steps in finish(task, lambda prompt: "s" * 60)] == [1]


def test_answers_that_are_longer_than_allowed_and_fit_in_no_pair_are_named() -> None:
    task = split(words(60), "map_reduce", limit=100)
    for step in task.advance():
        task.take(step, result("s" * 60, step.request), "engine-0")
    with pytest.raises(CannotSplit, match=r"room for two summaries of parts \(62 to 62 tokens\)"):
        task.advance()


def test_a_summary_that_fits_beside_no_other_goes_up_a_level_as_it_is() -> None:
    task = split(words(100), "map_reduce", limit=100)
    chunks = task.advance()
    for step in chunks:
        # 9 of the prompt are the template, 2 stand between two summaries.
        text = "s" * 80 if step is chunks[-1] else "t" * 40
        task.take(step, result(text, step.request), "engine-0")
    pairs = task.advance()
    assert len(pairs) == len(chunks) // 2 and all("s" not in prompt(step)[9:] for step in pairs)
    steps = pairs
    while steps:
        for step in steps:
            task.take(step, result("t", step.request), "engine-0")
        last, steps = steps[-1], task.advance()
    assert prompt(last)[9:] == "t\n\n" + "s" * 80


def test_summaries_that_ended_at_their_limit_are_counted() -> None:
    task = split(words(60), "map_reduce", limit=120)
    steps = task.advance()
    for n, step in enumerate(steps):
        task.take(step, result("s", step.request, "length" if n < 2 else "stop"), "engine-0")
    [last] = task.advance()
    task.take(last, result("all", last.request, "length"), "engine-1")
    assert task.advance() == ()
    row = task.answered()
    assert (row.n_cut_short, row.finish_reason, row.engine) == (2, "length", "engine-1")


def test_times_are_from_the_first_request_to_the_last_answer() -> None:
    task = split(words(30), "refine", limit=120)
    while steps := task.advance():
        task.take(steps[0], replace(result("s", steps[0].request), e2e_s=5.0, ttft_s=2.0), "e")
    row = task.answered()
    assert row.e2e_s is not None and row.ttft_s is not None
    assert 5 <= row.e2e_s < 5.5 and row.e2e_s - row.ttft_s == pytest.approx(3)


def test_kv_rows_are_sums_and_peaks_are_the_highest() -> None:
    task = split(words(60), "map_reduce", limit=120)
    kv = iter([{"rows_evicted": 2, "peak_rows_original": 5}, {"rows_evicted": 3}])
    while steps := task.advance():
        for step in steps:
            made = next(kv, {"peak_rows_original": 1})
            task.take(step, replace(result("s", step.request), kv=made), "e")
    assert task.answered().kv == {"rows_evicted": 5, "peak_rows_original": 5}


def test_strategies_split_what_has_no_prompt_of_its_own() -> None:
    strategy = Strategy(StrategyConfig(kind="refine", chunk_tokens=50), FakePrompts())
    plain, own = Document("d", "text"), Document("d", "text", prompt="text")
    assert strategy.splits(plain) and not strategy.splits(own)
    assert strategy.max_prompt_tokens(plain, 900) == 50
    assert strategy.max_prompt_tokens(plain, 30) == 30
    assert strategy.max_prompt_tokens(own, 900) == 900
    single = Strategy(StrategyConfig(), FakePrompts())
    assert not single.splits(plain) and single.max_prompt_tokens(plain, 900) == 900


def test_a_split_does_not_cut_before_it_is_asked() -> None:
    class Busy(FakePrompts):
        def count(self, text: str) -> int:
            raise AssertionError

    assert Split(Document("d", "text"), Busy(), 100, 10).map_reduce()
