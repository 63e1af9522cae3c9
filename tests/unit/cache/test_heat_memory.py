"""Heat that texts keep while the tree has let go of them."""

from array import array
from types import SimpleNamespace

import pytest
import torch

from arkv_sglang.cache.heat import HALF_LIFE_SEC, heat_of
from arkv_sglang.cache.heat_memory import BLOCK_TOKENS, HeatMemory

DOCUMENT = array("q", range(3 * BLOCK_TOKENS))
QUESTION = array("q", range(10_000, 10_000 + BLOCK_TOKENS // 2))


def prompt(*texts, hits=1, extra_key=None, cache_salt=None):
    """A request whose texts are one node each."""
    node = None
    for text in texts:
        node = SimpleNamespace(value=text, parent=node, hit_count=hits)
    token_ids = sum(texts, array("q"))
    return SimpleNamespace(
        full_untruncated_fill_ids=token_ids,
        last_node=node,
        extra_key=extra_key,
        cache_salt=cache_salt,
    )


def heat_after(memory, req, now=0.0, attention=None):
    """Heat of the prompt's nodes, first to last; by default every token receives as much."""
    num_tokens = len(req.full_untruncated_fill_ids)
    if attention is None:
        attention = torch.full((num_tokens,), 1 / num_tokens)
    memory.warm(req, attention, now)
    found, node = [], req.last_node
    while node is not None:
        found.append(heat_of(node).decayed(now))
        node = node.parent
    return found[::-1]


def test_a_text_is_cold_the_first_time():
    assert heat_after(HeatMemory(), prompt(DOCUMENT, QUESTION)) == [0, 0]


def test_a_text_that_the_tree_has_forgotten_is_known_again():
    memory = HeatMemory()
    heat_after(memory, prompt(DOCUMENT, QUESTION))
    document, other = heat_after(memory, prompt(DOCUMENT, array("q", range(7, 40))))
    assert document == pytest.approx(1, rel=1e-5)
    assert other == 0


def test_heat_adds_up_and_decays():
    memory = HeatMemory()
    found = [heat_after(memory, prompt(DOCUMENT), at * HALF_LIFE_SEC)[0] for at in range(3)]
    assert found == pytest.approx([0, 1, 1.5], rel=1e-5)


def test_nodes_that_were_found_in_the_tree_keep_what_they_have():
    memory, req = HeatMemory(), prompt(DOCUMENT, hits=2)
    assert [heat_after(memory, req)[0] for _ in range(2)] == pytest.approx([1, 2], rel=1e-5)


def test_each_node_has_the_heat_of_its_own_blocks():
    memory = HeatMemory()
    first, second = DOCUMENT[:BLOCK_TOKENS], DOCUMENT[BLOCK_TOKENS:]
    attention = torch.zeros(len(DOCUMENT))
    attention[:BLOCK_TOKENS] = 1 / BLOCK_TOKENS
    heat_after(memory, prompt(DOCUMENT), attention=attention)
    found = heat_after(memory, prompt(first, second), attention=attention)
    assert found == pytest.approx([3, 0], rel=1e-5)


def test_a_block_counts_for_the_node_that_has_all_of_it():
    memory = HeatMemory()
    cut = BLOCK_TOKENS + 1
    heat_after(memory, prompt(DOCUMENT))
    found = heat_after(memory, prompt(DOCUMENT[:cut], DOCUMENT[cut:]))
    assert found == pytest.approx([BLOCK_TOKENS / cut, BLOCK_TOKENS / (len(DOCUMENT) - cut)])


@pytest.mark.parametrize(
    "other",
    [
        prompt(array("q", [1]) + DOCUMENT),
        prompt(DOCUMENT, extra_key="adapter"),
        prompt(DOCUMENT, cache_salt="user"),
    ],
    ids=["other text before", "other extra key", "other salt"],
)
def test_what_is_not_the_same_text_is_cold(other):
    memory = HeatMemory()
    heat_after(memory, prompt(DOCUMENT))
    assert heat_after(memory, other) == [0]


def test_what_was_not_asked_for_longest_is_forgotten_first():
    memory = HeatMemory(max_blocks=6)
    texts = [array("q", range(start, start + 3 * BLOCK_TOKENS)) for start in (0, 1000, 2000)]
    for index in (0, 1, 0, 2):
        heat_after(memory, prompt(texts[index]))
    assert len(memory) == 6
    assert heat_after(memory, prompt(texts[0])) == pytest.approx([2], rel=1e-5)
    assert heat_after(memory, prompt(texts[1])) == [0]
