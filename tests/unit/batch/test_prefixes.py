import itertools
import time
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.batch.lane import Work
from arkv_sglang.batch.prefixes import PromptIndex, find_runs, shared_tokens
from arkv_sglang.batch.types import Request

from .fakes import work_of

prompts = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=25)


def work(ids: list[int]) -> Work:
    return work_of(Request("d", array("I", ids)))


def brute(a: list[int], b: list[int]) -> int:
    return common([a, b])


def common(prompts: list[list[int]]) -> int:
    columns = zip(*prompts, strict=False)
    return len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))


@given(st.lists(st.integers(0, 1)), st.lists(st.integers(0, 1)))
def test_shared_tokens(a: list[int], b: list[int]) -> None:
    assert shared_tokens(array("I", a), array("I", b)) == brute(a, b)


@settings(max_examples=200, deadline=None)
@given(prompts, st.data())
def test_the_index_knows_what_any_two_share(texts: list[list[int]], data: st.DataObject) -> None:
    index = PromptIndex()
    works: dict[Work, list[int]] = {}
    for ids in texts:
        added = work(ids)
        nearest = index.add(added)
        most = max((brute(ids, other) for other in works.values()), default=None)
        assert (nearest is None) == (most is None)
        if nearest is not None:
            assert nearest[1] == most == brute(ids, works[nearest[0]])
        works[added] = ids
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(list(works)))
            index.discard(gone)
            index.discard(gone)
            del works[gone]
    wanted = {each for each in works if data.draw(st.booleans())}
    found, shared = index.select(wanted.__contains__)
    assert set(found) == wanted and len(found) == len(wanted)
    ordered = [works[each] for each in found]
    assert ordered == sorted(ordered)
    assert shared == [brute(ordered[n - 1], ordered[n]) if n else 0 for n in range(len(ordered))]


def runs(texts: list[list[int]], large: float = 1e9) -> set[frozenset[int]]:
    """Which of the prompts are together, those that are alone left out."""
    index = PromptIndex()
    works = [work(ids) for ids in texts]
    for each in works:
        index.add(each)
    found, shared = index.select(lambda each: True)
    lengths = [len(each.request.input_ids) for each in found]
    cut = list(find_runs(lengths, shared, large))
    assert [n for run in cut for n in range(run.begin, run.end)] == list(range(len(texts)))
    for run in cut:
        together = [list(each.request.input_ids) for each in found[run.begin : run.end]]
        assert run.prefix_tokens == common(together)
    return {
        frozenset(works.index(each) for each in found[run.begin : run.end])
        for run in cut
        if not run.is_alone
    }


def text(number: int, tokens: int) -> list[int]:
    return [number] * tokens


INSTRUCTION = text(1, 30)


def test_questions_on_a_document_belong_together_and_an_instruction_makes_no_group() -> None:
    asked = [
        INSTRUCTION + text(document, 300) + text(question, 20)
        for question in (7, 8, 9)
        for document in (100, 101, 102)
    ]
    alone = [INSTRUCTION + text(200, 300), INSTRUCTION + text(201, 90_000), [5], []]
    groups = {frozenset({n, n + 3, n + 6}) for n in range(3)}
    assert runs(asked + alone) == groups
    assert runs(alone) == set()


def test_long_examples_before_all_documents_do_not_hide_the_documents() -> None:
    examples = INSTRUCTION + text(2, 2000)
    asked = [
        examples + text(document, 300) + text(question, 20)
        for document in range(100, 120)
        for question in (7, 8)
    ]
    assert runs(asked, large=3000) == {frozenset({n, n + 1}) for n in range(0, 40, 2)}
    # One engine may as well have all.
    assert runs(asked) == {frozenset(range(40))}
    # Where documents share nothing with each other, the examples are what there is to share.
    assert runs([examples + text(n, 300) for n in range(100, 120)], large=3000) == {
        frozenset(range(20))
    }


def test_equal_prompts_are_together_however_large() -> None:
    assert runs([text(1, 50)] * 5, large=10) == {frozenset(range(5))}


@pytest.mark.parametrize("shares_all", [False, True])
def test_a_prompt_of_100_000_tokens_costs_little(shares_all: bool) -> None:
    """512 that share nothing, or all of it. The limit leaves room for a busy machine."""
    index = PromptIndex()
    long = array("I", [1]) * 100_000
    works = [
        work_of(Request("d", long + array("I", [n]) if shares_all else array("I", [n]) + long))
        for n in range(512)
    ]
    begun = time.process_time()
    for each in works:
        index.add(each)
    found, shared = index.select(lambda each: True)
    list(find_runs([100_001] * len(found), shared, 1e6))
    for each in works:
        index.discard(each)
    assert time.process_time() - begun < 512 * 0.003
