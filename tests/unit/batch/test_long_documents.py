"""The scheduler with documents in several requests, one token per character."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.batch.config import StrategyConfig
from arkv_sglang.batch.scheduler import Limits, Scheduler
from arkv_sglang.batch.strategy import Strategy
from arkv_sglang.batch.types import (
    BadDocument,
    Chunk,
    Document,
    EngineInfo,
    Request,
    Row,
    RunFailed,
)

from .fakes import FakeEngine, FakePrompts

SKULL = "☠"
KINDS = ["map_reduce", "refine"]


class Mortal(FakeEngine):
    """Dies of a piece of text, and not of all documents that have it somewhere."""

    def dies_of(self, request: Request) -> bool:
        return super().dies_of(request) or ord(SKULL) in request.input_ids


def text(length: int) -> str:
    return ("A sentence. " * (length // 12 + 1))[:length]


def documents(*lengths: int) -> list[Document | BadDocument]:
    return [Document(f"d{n}", text(length)) for n, length in enumerate(lengths)]


def run(
    engines: list[Any], source: list[Any], kind: str, prompts: Any = None, **limits: Any
) -> tuple[dict[str, Row], list[Chunk], Scheduler]:
    rows, chunks, scheduler, reason = attempt(engines, source, kind, prompts, **limits)
    assert reason is None and rows.keys() == {document.doc_id for document in source}
    assert scheduler.num_open == scheduler.num_waiting == scheduler.tokens_left == 0
    return rows, chunks, scheduler


def attempt(
    engines: list[Any], source: list[Any], kind: str, prompts: Any = None, **limits: Any
) -> tuple[dict[str, Row], list[Chunk], Scheduler, str | None]:
    """Rows by id, chunks, and why the run failed if it did."""
    rows: list[Row] = []
    chunks: list[Chunk] = []
    made = prompts or FakePrompts()
    strategy = limits.pop("strategy", {})

    def emit(row: Row) -> None:
        rows.append(row)
        own = [chunk for chunk in chunks if chunk.doc_id == row.doc_id]
        if row.status == "ok" and row.strategy != "single":
            assert len([chunk for chunk in own if not chunk.level]) == row.n_chunks
            assert sum(chunk.result.prompt_tokens for chunk in own) == row.prompt_tokens

    async def go() -> tuple[Scheduler, str | None]:
        scheduler = Scheduler(
            engines,
            iter(source),
            made,
            emit,
            Limits(**{"max_new_tokens": 10} | limits),
            Strategy(StrategyConfig(kind=kind, **strategy), made),
            chunks.append,
        )
        reason = None
        try:
            await asyncio.wait_for(scheduler.run(), 60)
        except RunFailed as error:
            reason = str(error)
        assert scheduler.num_in_flight == 0
        return scheduler, reason

    scheduler, reason = asyncio.run(go())
    by_id = {row.doc_id: row for row in rows}
    assert len(by_id) == len(rows), "a document has two rows"
    assert by_id.keys() <= {document.doc_id for document in source}
    return by_id, chunks, scheduler, reason


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_split_and_what_fits_is_not(kind: str) -> None:
    own = Document("own", text(1500), prompt=text(1500))
    rows, chunks, _ = run([FakeEngine()], [*documents(982, 983, 5000), own], kind)
    assert {row.doc_id: (row.status, row.strategy) for row in rows.values()} == {
        "d0": ("ok", "single"),
        "d1": ("ok", kind),
        "d2": ("ok", kind),
        "own": ("too_long", "single"),
    }
    assert rows["d0"].n_chunks == 1 and rows["d0"].truncated is False
    assert (rows["d1"].n_chunks, rows["d2"].n_chunks) == (2, 6)
    assert {chunk.doc_id for chunk in chunks} == {"d1", "d2"}
    assert all(chunk.result.prompt_tokens <= 982 for chunk in chunks)


def test_documents_that_have_begun_go_first() -> None:
    engine = FakeEngine()
    run([engine], documents(300, 3000, 200, 2000), "map_reduce", window_docs=1)
    seen = engine.seen
    # Something else may run while a document is cut, or its summaries are put together.
    assert [doc_id for doc_id in seen if doc_id in ("d1", "d3")][:4] == ["d1"] * 4
    first_of_d3 = seen.index("d3")
    assert seen[first_of_d3 + 1] != "d2" and seen.index("d2") > first_of_d3 + 1


def test_chunks_of_one_document_run_on_several_engines() -> None:
    engines = [FakeEngine("a"), FakeEngine("b")]
    rows, chunks, _ = run(engines, documents(9000), "map_reduce", window_docs=2)
    assert rows["d0"].status == "ok"
    assert {chunk.engine for chunk in chunks} == {"a", "b"}


def test_short_prompts_are_wanted_of_what_is_split_and_only_of_that() -> None:
    own = Document("own", text(500), prompt=text(500))
    rows, chunks, _ = run(
        [FakeEngine()], [*documents(100, 500), own], "refine", strategy={"chunk_tokens": 100}
    )
    assert [rows[i].strategy for i in ("d0", "d1", "own")] == ["single", "refine", "single"]
    assert max(chunk.result.prompt_tokens for chunk in chunks) <= 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_that_fails_ends_its_document(kind: str) -> None:
    class Failing(FakeEngine):
        async def generate(self, request: Request) -> Any:
            if ord(SKULL) in request.input_ids:
                raise KeyError("meta_info")
            return await super().generate(request)

    bad = Document("bad", text(2000) + SKULL + text(6000))
    engine = Failing()
    rows, chunks, _ = run([engine], [bad, *documents(2000)], kind, window_docs=2)
    assert rows["d0"].status == "ok" and rows["bad"].status == "error"
    assert rows["bad"].error == "chunk 3 of 9: KeyError: 'meta_info'"
    assert (rows["bad"].strategy, rows["bad"].n_chunks) == (kind, 9)
    assert rows["bad"].engine == "engine-0" and rows["bad"].truncated is None
    # What waited was dropped.
    assert len([chunk for chunk in chunks if chunk.doc_id == "bad"]) < 9


def test_a_chunk_without_an_answer_ends_its_document() -> None:
    class Silent(FakeEngine):
        async def generate(self, request: Request) -> Any:
            await asyncio.sleep(3600 if ord(SKULL) in request.input_ids else 0)
            return await super().generate(request)

    bad = Document("bad", text(2000) + SKULL + text(2000))
    rows, _, _ = run([Silent()], [bad], "map_reduce", request_timeout_s=0.1)
    assert rows["bad"].error == "chunk 3 of 5: no answer within 0.1 s"


def test_a_chunk_that_kills_its_engine_is_named_and_innocents_are_answered() -> None:
    bad = Document("bad", text(2000) + SKULL + text(2000))
    engines = [Mortal(name) for name in "ab"]
    rows, _, scheduler = run(engines, [bad, *documents(3000, 500, 500)], "map_reduce")
    assert {row.status for doc_id, row in rows.items() if doc_id != "bad"} == {"ok"}
    error = rows["bad"].error
    assert error is not None
    assert error.startswith("chunk 3 of 5: its engine died 2 times running it alone: ")
    assert len(rows["bad"].death_log) >= 3
    assert sum(lane.deaths for lane in scheduler.lanes) == 3


def test_a_document_that_cannot_be_split_is_too_long() -> None:
    rows, _, _ = run([FakeEngine()], documents(3000), "refine", max_new_tokens=985)
    assert rows["d0"].status == "too_long"
    assert rows["d0"].error is not None
    assert "have room for text beside strategy.refine_template" in rows["d0"].error
    assert (rows["d0"].strategy, rows["d0"].n_chunks) == ("refine", None)
    assert rows["d0"].prompt_tokens == 3000


def test_a_template_that_breaks_on_a_chunk_costs_its_document() -> None:
    class Broken(FakePrompts):
        def build_part(self, document: Any, part: Any, text: str, summary: str = "") -> Request:
            if part == "combine":
                raise KeyError("no such variable")
            return super().build_part(document, part, text, summary)

    rows, _, _ = run([FakeEngine()], documents(3000, 100), "map_reduce", prompts=Broken())
    assert (rows["d0"].status, rows["d1"].status) == ("invalid", "ok")
    assert rows["d0"].error == "the prompt cannot be made: KeyError: 'no such variable'"


def test_chunks_are_cut_for_the_smallest_engine() -> None:
    class Small(FakeEngine):
        async def start(self) -> EngineInfo:
            await super().start()
            return EngineInfo(context_tokens=500, capacity_tokens=500, device="fake")

    engines = [Small("small"), FakeEngine("large", start_s=0.001)]
    rows, chunks, _ = run(engines, documents(3000, 3000, 3000), "map_reduce", window_docs=1)
    assert {row.status for row in rows.values()} == {"ok"}
    assert max(chunk.result.prompt_tokens for chunk in chunks) <= 500 - 18


def test_a_document_of_which_a_piece_was_running_has_no_row_when_no_engine_is_left() -> None:
    bad = Document("bad", text(2000) + SKULL + text(2000))
    source = [bad, *documents(3000, 200)]
    rows, _, _, reason = attempt([Mortal(restarts=0)], source, "map_reduce", window_docs=1)
    assert reason is not None and reason.startswith("0 of 1 engines are left")
    assert "bad" not in rows and {row.status for row in rows.values()} <= {"ok"}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5000), max_size=12),
    skulls=st.sets(st.integers(0, 11), max_size=3),
    engines=st.integers(1, 3),
    restarts=st.sampled_from([0, 1, 4, 1000]),
    window=st.integers(1, 6),
    lookahead=st.integers(1, 20),
)
def test_whatever_dies_every_document_has_exactly_one_row(
    kind: str,
    sizes: list[int],
    skulls: set[int],
    engines: int,
    restarts: int,
    window: int,
    lookahead: int,
) -> None:
    source = [
        Document(f"d{n}", text(size)[:-1] + SKULL if n in skulls else text(size))
        for n, size in enumerate(sizes)
    ]
    fleet = [Mortal(f"e{n}", restarts=restarts) for n in range(engines)]
    limits = {"window_docs": window, "lookahead_docs": lookahead, "max_restarts": 1000}
    rows, _, scheduler, reason = attempt(fleet, list(source), kind, **limits)
    assert (reason is None) == (len(rows) == len(sizes))
    if restarts == 1000:
        assert reason is None
        assert all(lane.gone is None for lane in scheduler.lanes)
        for n, size in enumerate(sizes):
            row = rows[f"d{n}"]
            assert row.status == ("error" if n in skulls else "ok")
            assert row.strategy == (kind if size > 982 else "single")
