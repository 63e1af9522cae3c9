from array import array

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from arkv_sglang.batch.lane import Lane, Work
from arkv_sglang.batch.types import Request
from arkv_sglang.batch.waiting import Waiting

from .fakes import FakeEngine, work_of

ANSWER = 10


def prompt(
    document: int, tokens: int = 100, question: int = 0, more: int = 5, turn: int | None = None
) -> Work:
    ids = [1] * 10 + [document] * tokens + [question] * more
    return work_of(Request(f"{document}-{question}", array("I", ids)), turn)


def lanes(count: int) -> list[Lane]:
    return [Lane(FakeEngine(f"engine-{n}")) for n in range(count)]


def take(waiting: Waiting, lane: Lane) -> str | None:
    work = waiting.offer(lane)
    if work is None:
        return None
    waiting.take(lane, work)
    lane.in_flight.append(work)
    return work.request.doc_id


def end(waiting: Waiting, lane: Lane) -> None:
    for work in lane.in_flight:
        waiting.finished(work)
    lane.in_flight.clear()


def filled(*works: Work, engines: int = 2, group_prefixes: bool = True) -> Waiting:
    waiting = Waiting(ANSWER, engines, group_prefixes)
    for work in works:
        waiting.push(work)
    return waiting


def test_questions_on_a_document_go_to_one_engine_in_turn() -> None:
    works = [prompt(d, question=q) for q in (50, 51, 52) for d in (10, 11, 12)]
    waiting = filled(*works)
    a, b = lanes(2)
    taken: dict[str, list[str | None]] = {"a": [], "b": []}
    for _ in range(3):
        taken["a"].append(take(waiting, a))
        taken["b"].append(take(waiting, b))
    for names in taken.values():
        assert len({str(name).split("-")[0] for name in names}) == 1
    prefixes = [{w.request_in_group.prefix for w in lane.in_flight} for lane in (a, b)]
    assert len(prefixes[0]) == 1 and not prefixes[0] & prefixes[1]


def test_without_grouping_the_longest_go_first_wherever() -> None:
    works = [prompt(10, 100), prompt(10, 300), prompt(11, 200), prompt(10, 299)]
    waiting = filled(*works, group_prefixes=False)
    a, b = lanes(2)
    assert [take(waiting, lane) for lane in (a, b, a, b)] == ["10-0", "10-0", "11-0", "10-0"]
    assert [w.request.prompt_tokens for w in a.in_flight + b.in_flight] == [315, 215, 314, 115]
    assert take(waiting, a) is None
    assert len({work.request_in_group.prefix for work in a.in_flight + b.in_flight}) == 4


def test_the_group_with_the_most_to_compute_goes_first() -> None:
    many = [prompt(10, 100, question, more=60) for question in range(50, 55)]
    waiting = filled(prompt(11, 400), *many, prompt(12, 250))
    a, b, c = lanes(3)
    # 110 + 5 * (60 + 10) = 460 tokens, 415 + 10 and 265 + 10.
    assert [str(take(waiting, lane))[:2] for lane in (a, b, c)] == ["10", "11", "12"]
    assert a.in_flight_tokens == 180 and waiting.new_tokens == 4 * 70


def test_a_prefix_counts_once_in_what_an_engine_holds() -> None:
    waiting = filled(*(prompt(10, 100, question) for question in (50, 51, 52)))
    (a,) = lanes(1)
    for held in (125, 140, 155):
        take(waiting, a)
        assert a.in_flight_tokens == held
    del a.in_flight[0]
    assert a.in_flight_tokens == 140


def test_what_is_read_later_follows_its_document() -> None:
    waiting = filled(prompt(10, 400, 50), prompt(11, 300, 50))
    a, b = lanes(2)
    assert take(waiting, a) == "10-50"
    waiting.push(prompt(10, 400, 51))
    assert take(waiting, b) == "11-50"
    # The other engine has nothing to do, and would have to compute the whole document.
    assert take(waiting, b) is None
    assert take(waiting, a) == "10-51"
    end(waiting, a)
    waiting.push(prompt(10, 400, 52))
    assert take(waiting, b) == "10-52"


def test_who_has_nothing_to_do_helps_where_the_end_would_come_late() -> None:
    few = filled(*(prompt(10, 400, question, more=20) for question in (50, 51, 52)))
    a, b = lanes(2)
    assert take(few, a) == "10-50"
    assert take(few, b) is None
    many = filled(*(prompt(10, 400, question, more=200) for question in range(50, 60)))
    a, b = lanes(2)
    names = [take(many, a), take(many, b)]
    while many:
        names += [take(many, min(a, b, key=lambda lane: lane.in_flight_tokens))]
    assert None not in names and len(set(names)) == 10
    assert abs(len(a.in_flight) - len(b.in_flight)) <= 2


def test_what_has_a_turn_goes_first_and_in_turn() -> None:
    waiting = filled(prompt(10, 400, 50), prompt(10, 400, 51), prompt(11, 300, 50))
    (a,) = lanes(1)
    assert take(waiting, a) == "10-50"
    for document, turn in ((12, 2), (13, 1), (14, 2)):
        waiting.push(prompt(document, 20, turn=turn))
    names = [take(waiting, a) for _ in range(5)]
    assert names == ["13-0", "12-0", "14-0", "10-51", "11-50"]


def test_an_engine_that_dies_lets_its_groups_go() -> None:
    waiting = filled(*(prompt(10, 400, question) for question in (50, 51, 52)))
    a, b = lanes(2)
    assert take(waiting, a) == "10-50" and take(waiting, b) is None
    before = waiting.new_tokens
    waiting.release(a)
    # The prefix has to be computed again.
    assert waiting.new_tokens == before + 410
    end(waiting, a)
    assert take(waiting, b) is not None and take(waiting, b) is not None and not waiting


class Anything(RuleBasedStateMachine):
    """Engines take, finish and die in any order, while documents come in."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = Waiting(ANSWER, engines=3)
        self.lanes = lanes(3)
        self.known: set[Work] = set()

    @rule(
        document=st.integers(10, 13),
        tokens=st.sampled_from([1, 20, 90]),
        question=st.integers(50, 53),
        more=st.integers(0, 60),
        turn=st.sampled_from([None, None, 1, 2]),
    )
    def push(self, document: int, tokens: int, question: int, more: int, turn: int | None) -> None:
        work = prompt(document, tokens, question, more, turn)
        self.known.add(work)
        self.waiting.push(work)

    @rule(n=st.integers(0, 2))
    def take(self, n: int) -> None:
        before = len(self.waiting)
        taken = take(self.waiting, self.lanes[n])
        assert len(self.waiting) == before - (taken is not None)

    @rule(n=st.integers(0, 2))
    def finish(self, n: int) -> None:
        if self.lanes[n].in_flight:
            work = self.lanes[n].in_flight.pop(0)
            self.waiting.finished(work)
            self.known.remove(work)

    @rule(n=st.integers(0, 2))
    def die(self, n: int) -> None:
        self.waiting.release(self.lanes[n])
        self.known -= set(self.lanes[n].in_flight)
        end(self.waiting, self.lanes[n])

    @precondition(lambda self: len(self.waiting))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(list(self.waiting)))
        self.waiting.remove(work)
        self.known.remove(work)

    @invariant()
    def nothing_is_lost_and_the_sums_are_right(self) -> None:
        waiting = list(self.waiting)
        in_flight = {work for lane in self.lanes for work in lane.in_flight}
        assert self.known == in_flight | set(waiting) and not in_flight & set(waiting)
        assert self.waiting.prompt_tokens == sum(w.request.prompt_tokens for w in waiting)
        groups = {work.group for work in waiting if work.group}
        assert sorted(map(id, waiting)) == sorted(id(w) for g in groups for w in g.waiting)
        assert self.waiting.new_tokens == sum(group.new_tokens for group in groups)
        assert not waiting or any(map(self.waiting.offer, self.lanes)), "nobody may have it"
        for group in groups | {work.group for work in in_flight if work.group}:
            assert all(w.request.prompt_tokens >= group.prefix_tokens for w in group.waiting)
            ids = {tuple(w.request.input_ids[: group.prefix_tokens]) for w in group.waiting}
            assert len(ids) <= 1

    def teardown(self) -> None:
        while self.waiting:
            for lane in self.lanes:
                end(self.waiting, lane)
                take(self.waiting, lane)


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
