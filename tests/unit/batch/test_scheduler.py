import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.batch.scheduler import Limits, Scheduler
from arkv_sglang.batch.types import BadDocument, Document, Row, RunFailed

from .fakes import FakeEngine, FakePrompts


def documents(sizes: Iterable[int], kinds: int = 1000) -> list[Document | BadDocument]:
    """Those of one kind begin alike."""
    return [Document(f"d{n}", chr(0x4E00 + n % kinds) * size) for n, size in enumerate(sizes)]


def attempt(
    engines: list[Any], source: list[Document | BadDocument], **limits: Any
) -> tuple[dict[str, Row], Scheduler, str | None]:
    """Rows, and why the run failed if it did."""
    rows: list[Row] = []

    async def go() -> tuple[Scheduler, str | None]:
        settings = Limits(**{"max_new_tokens": 10} | limits)
        scheduler = Scheduler(engines, iter(source), FakePrompts(), rows.append, settings)
        try:
            await asyncio.wait_for(scheduler.run(), 20)
        except RunFailed as error:
            return scheduler, str(error)
        return scheduler, None

    scheduler, reason = asyncio.run(go())
    by_id = {row.doc_id: row for row in rows}
    assert len(by_id) == len(rows), "a document has two rows"
    assert by_id.keys() <= {document.doc_id for document in source}
    return by_id, scheduler, reason


def run(
    engines: list[Any], source: list[Document | BadDocument], **limits: Any
) -> tuple[dict[str, Row], Scheduler]:
    rows, scheduler, reason = attempt(engines, source, **limits)
    assert reason is None and set(rows) == {document.doc_id for document in source}
    return rows, scheduler


def test_each_document_is_answered_once_and_all_engines_work() -> None:
    engines = [FakeEngine("a"), FakeEngine("b")]
    rows, scheduler = run(engines, documents([100] * 40), window_docs=4)
    assert {row.status for row in rows.values()} == {"ok"}
    assert sum(lane.served.requests for lane in scheduler.lanes) == 40
    assert min(lane.served.requests for lane in scheduler.lanes) >= 10
    assert max(engine.peak_running for engine in engines) == 4


def test_the_longest_go_first() -> None:
    engine = FakeEngine()
    run([engine], documents([10, 500, 30, 400]), window_docs=1)
    assert engine.seen == ["d1", "d3", "d2", "d0"]


def test_reading_is_bounded_by_the_lookahead() -> None:
    read = 0

    def source() -> Iterable[Document]:
        nonlocal read
        for document in documents([10] * 100):
            read += 1
            yield document

    ahead = []

    class Watching(FakeEngine):
        async def generate(self, request: Any) -> Any:
            ahead.append(read - len(self.seen))
            return await super().generate(request)

    async def go() -> None:
        emit: list[Row] = []
        limits = Limits(10, window_docs=2, lookahead_docs=8)
        await Scheduler([Watching()], iter(source()), FakePrompts(), emit.append, limits).run()

    asyncio.run(go())
    assert max(ahead) <= 8 + 2


def test_a_window_in_tokens_holds_but_never_blocks_one_large_document() -> None:
    engine = FakeEngine()
    rows, _ = run([engine], documents([900, 200, 200, 200, 200]), window_tokens=450)
    assert {row.status for row in rows.values()} == {"ok"}
    assert engine.peak_tokens == 900
    small = FakeEngine()
    run([small], documents([200] * 6), window_tokens=450)
    assert small.peak_tokens == 400


def test_a_window_counts_answers_and_a_shared_prefix_once() -> None:
    def peak_running(**limits: Any) -> int:
        engine = FakeEngine()
        run([engine], documents([200] * 6, kinds=1), window_tokens=440, **limits)
        return engine.peak_running

    assert peak_running() == 6
    assert peak_running(max_new_tokens=80) == 3
    assert peak_running(group_prefixes=False) == 2


def test_the_first_engine_to_be_ready_leaves_the_others_their_share() -> None:
    engines = [FakeEngine("quick"), FakeEngine("late", start_s=0.0005)]
    _, scheduler = run(engines, documents([900] * 8), window_docs=32)
    assert min(lane.served.requests for lane in scheduler.lanes) >= 3


def test_the_questions_on_one_document_do_not_wait_for_the_first_answer() -> None:
    engines = [FakeEngine("a"), FakeEngine("b")]
    source = [Document(f"d{n}", "x" * 500 + str(n)) for n in range(4)]
    run(engines, [*source], max_new_tokens=100)
    assert sorted(engine.peak_running for engine in engines) == [0, 4]


def test_who_has_the_giant_of_a_corpus_gets_little_else() -> None:
    engines = [FakeEngine("a"), FakeEngine("b")]
    run(engines, documents([900, *[40] * 10]))
    assert sorted(len(engine.seen) for engine in engines) == [1, 10]


def test_questions_on_a_document_run_on_one_engine() -> None:
    source: list[Document | BadDocument] = [
        Document(f"{letter}{n}", "instruction " + letter * 300 + f" question {n}")
        for n in range(4)
        for letter in "abcdef"
    ]
    engines = [FakeEngine("one"), FakeEngine("two")]
    run(engines, source, window_docs=4)
    by_engine = {engine.name: {name[0] for name in engine.seen} for engine in engines}
    assert not by_engine["one"] & by_engine["two"] and len(by_engine["one"]) == 3
    off = [FakeEngine("one"), FakeEngine("two")]
    run(off, source, window_docs=4, group_prefixes=False)
    assert {name[0] for name in off[0].seen} & {name[0] for name in off[1].seen}


def test_bad_and_too_long_documents_get_rows_and_the_rest_go_on() -> None:
    source = [
        *documents([982, 983]),
        BadDocument("bad", "text must be text, got missing"),
        Document("odd", "unrenderable"),
    ]
    rows, _ = run([FakeEngine()], source)
    assert {doc_id: row.status for doc_id, row in rows.items()} == {
        "d0": "ok",
        "d1": "too_long",
        "bad": "invalid",
        "odd": "invalid",
    }
    assert rows["d1"].error is not None and "983 tokens and at most 982" in rows["d1"].error
    assert rows["bad"].error == "text must be text, got missing"
    assert rows["odd"].error == "the prompt cannot be made: KeyError: 'no such variable'"


def test_a_failed_request_is_an_error_row() -> None:
    rows, _ = run([FakeEngine(fails=frozenset({"d1"}))], documents([10, 10, 10]))
    assert [rows[f"d{n}"].status for n in range(3)] == ["ok", "error", "ok"]
    assert rows["d1"].error == "the engine refused it"


def test_an_error_that_nobody_foresaw_costs_one_document() -> None:
    class Odd(FakeEngine):
        async def generate(self, request: Any) -> Any:
            if request.doc_id == "d1":
                raise KeyError("meta_info")
            return await super().generate(request)

    rows, _ = run([Odd()], documents([10, 10, 10]))
    assert [rows[f"d{n}"].status for n in range(3)] == ["ok", "error", "ok"]
    assert rows["d1"].error == "KeyError: 'meta_info'" and rows["d1"].engine == "engine-0"


def test_an_engine_that_starts_with_such_an_error_is_given_up() -> None:
    class Odd(FakeEngine):
        async def start(self) -> Any:
            raise TypeError("no such argument")

    rows, scheduler = run([Odd("odd"), FakeEngine("well", start_s=0.01)], documents([10] * 5))
    assert {row.engine for row in rows.values()} == {"well"}
    assert scheduler.lanes[0].gone == "TypeError: no such argument"


def test_only_the_document_that_kills_its_engine_is_blamed() -> None:
    poison = frozenset({"d7"})
    engines = [FakeEngine(name, poison=poison) for name in "ab"]
    rows, scheduler = run(engines, documents([100] * 30), window_docs=8)
    assert [doc_id for doc_id, row in rows.items() if row.status != "ok"] == ["d7"]
    assert rows["d7"].error is not None and "died 2 times running it alone" in rows["d7"].error
    assert sum(lane.deaths for lane in scheduler.lanes) == 3


def test_documents_of_an_engine_that_never_returns_run_on_the_others() -> None:
    dying = FakeEngine("dying", poison=frozenset({"d0"}), restarts=0)
    rows, scheduler = run([dying, FakeEngine("well")], documents([100] * 20), window_docs=4)
    assert {row.status for row in rows.values()} == {"ok"}
    if scheduler.lanes[0].deaths:
        assert scheduler.lanes[0].gone is not None


def test_without_any_engine_left_the_run_ends_and_what_was_not_done_has_no_row() -> None:
    engine = FakeEngine(poison=frozenset({"d1"}), restarts=0)
    rows, _, reason = attempt([engine], documents([100, 50, 40]), window_docs=1, lookahead_docs=2)
    assert {doc_id: row.status for doc_id, row in rows.items()} == {"d0": "ok"}
    assert reason == (
        "0 of 1 engines are left, and engines.min_engines is 1: engine-0 could not start; "
        "run again to go on with what is missing"
    )


def test_a_run_ends_below_min_engines_once_the_others_have_done_what_they_hold() -> None:
    source = documents([100] * 400)
    later = frozenset(document.doc_id for document in source[50:])
    dying, well = FakeEngine("dying", poison=later, restarts=0), FakeEngine("well")
    rows, _, reason = attempt([dying, well], source, window_docs=4, min_engines=2)
    assert {row.status for row in rows.values()} == {"ok"} and 0 < len(rows) < 400
    assert set(well.seen) <= rows.keys() and well.running == 0
    assert reason is not None
    assert reason.startswith("1 of 2 engines are left, and engines.min_engines is 2: dying could ")


def test_an_engine_that_dies_of_everything_is_given_up_before_it_blames_the_innocent() -> None:
    source = documents([100] * 30)
    everything = frozenset(document.doc_id for document in source)
    broken = FakeEngine("broken", poison=everything)
    rows, scheduler = run([broken, FakeEngine("well")], source, window_docs=4, max_restarts=3)
    assert {row.status for row in rows.values()} == {"ok"}
    assert scheduler.lanes[0].deaths == 4
    assert scheduler.lanes[0].gone == (
        "broken died (death 4 without an answer in between, and engines.max_restarts is 3)"
    )


def test_an_engine_that_died_answers_another_before_it_runs_a_suspect() -> None:
    engine = FakeEngine(poison=frozenset({"d0"}))
    rows, _scheduler = run([engine], documents([100, 90, 80, 70, 60]), window_docs=1)
    assert engine.seen == ["d0", "d1", "d0", "d2", "d0", "d3", "d4"]
    assert [doc_id for doc_id, row in rows.items() if row.status != "ok"] == ["d0"]


def test_many_documents_that_kill_cost_no_engine() -> None:
    poison = frozenset({f"d{n}" for n in range(8)})
    rows, _scheduler = run([FakeEngine(poison=poison)], documents([100] * 16), max_restarts=2)
    assert {doc_id for doc_id, row in rows.items() if row.status != "ok"} == poison
    assert all(len(rows[doc_id].death_log) >= 2 for doc_id in poison)


def test_an_engine_that_dies_idle_is_started_again() -> None:
    engine = FakeEngine()
    rows: list[Row] = []

    async def go() -> Scheduler:
        def source() -> Iterator[Document]:
            yield Document("d0", "x")
            while not rows:
                time.sleep(0.001)
            asyncio.run_coroutine_threadsafe(scheduler.lose_idle(lane, "it died"), loop).result()
            yield Document("d1", "x")

        loop = asyncio.get_running_loop()
        limits = Limits(10, lookahead_docs=1)
        scheduler = Scheduler([engine], source(), FakePrompts(), rows.append, limits)
        lane = scheduler.lanes[0]
        await asyncio.wait_for(scheduler.run(), 20)
        return scheduler

    lane = asyncio.run(go()).lanes[0]
    assert [row.status for row in rows] == ["ok", "ok"]
    assert (lane.deaths, lane.last_death, lane.gone) == (1, "it died", None)


def test_a_run_without_any_engine_fails() -> None:
    rows, _, reason = attempt([FakeEngine(starts=False)], documents([10]))
    assert not rows and reason == "no engine started: engine-0 could not start"


def test_a_run_does_not_wait_for_an_engine_that_it_no_longer_needs() -> None:
    rows, _ = run([FakeEngine("a"), FakeEngine("slow", start_s=3600)], documents([10, 2000]))
    assert {row.status for row in rows.values()} == {"ok", "too_long"}


def test_an_answer_that_never_comes_is_an_error_row() -> None:
    class Silent(FakeEngine):
        async def generate(self, request: Any) -> Any:
            await asyncio.sleep(3600)

    rows, _ = run([Silent()], documents([10]), request_timeout_s=0.05)
    assert rows["d0"].error == "no answer within 0.05 s"


def test_no_documents_is_no_rows() -> None:
    assert run([FakeEngine()], [])[0] == {}


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 1200), max_size=25),
    poison=st.sets(st.integers(0, 24), max_size=3),
    engines=st.integers(1, 3),
    restarts=st.sampled_from([0, 1, 4, 9]),
    window=st.integers(1, 6),
    lookahead=st.integers(1, 30),
    group=st.booleans(),
)
def test_whatever_dies_every_document_has_exactly_one_row(
    sizes: list[int],
    poison: set[int],
    engines: int,
    restarts: int,
    window: int,
    lookahead: int,
    group: bool,
) -> None:
    killers = frozenset(f"d{n}" for n in poison)
    fleet = [FakeEngine(f"e{n}", poison=killers, restarts=restarts) for n in range(engines)]
    limits = {"window_docs": window, "lookahead_docs": lookahead, "group_prefixes": group}
    rows, scheduler, reason = attempt(fleet, documents(sizes, kinds=3), max_restarts=9, **limits)
    if restarts == 9:
        # Three killers, each of them dying once in company and twice alone.
        assert all(lane.gone is None for lane in scheduler.lanes)
    assert (reason is None) == (len(rows) == len(sizes))
    assert reason is None or all(lane.gone is not None for lane in scheduler.lanes)
    for doc_id, row in rows.items():
        too_long = sizes[int(doc_id[1:])] > 1000 - 10 - 8
        want = "too_long" if too_long else "error" if doc_id in killers else "ok"
        assert row.status == want
