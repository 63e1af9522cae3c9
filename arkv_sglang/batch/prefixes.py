"""Which prompts begin alike, exactly, by their token ids.

In the order of their token ids, those that share the most stand side by side, and what any two
share is the least that any neighbours between them share. So one number beside each prompt, kept
up to date as prompts come and go, tells as much as a radix tree.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from arkv_sglang.batch.lane import Work

# Prompts belong together when they share more than this part of the longer one.
MIN_SHARED = 1 / 3
# Instruction, examples, document, and one more: what is nested deeper is taken as one group.
MAX_LEVELS = 4


class Run(NamedTuple):
    """Prompts ``begin`` to ``end`` share ``prefix_tokens``; the first ``common_tokens`` of these
    are shared by so many more that they tell nothing."""

    begin: int
    end: int
    prefix_tokens: int
    common_tokens: int

    @property
    def is_alone(self) -> bool:
        return self.end - self.begin == 1


def shared_tokens(a: array[int], b: array[int]) -> int:
    """How many tokens both begin with."""
    length = min(len(a), len(b))
    differ = np.asarray(a)[:length] != np.asarray(b)[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length


def belong_together(shared: int, longer: int, common: int) -> bool:
    """Whether two prompts do, the ``longer`` of which has so many tokens."""
    return shared - common > MIN_SHARED * (longer - common)


class PromptIndex:
    """Work in the order of its token ids."""

    def __init__(self) -> None:
        self._keys: list[tuple[array[int], int]] = []
        self._works: list[Work] = []
        self._shared: list[int] = []  # with the one before
        self._key_of: dict[Work, tuple[array[int], int]] = {}
        self._number = itertools.count()

    def add(self, work: Work) -> tuple[Work, int] | None:
        """Returns the one that begins most like it, if there is another, and how many tokens they
        share."""
        ids = work.request.input_ids
        key = self._key_of[work] = (ids, next(self._number))
        at = bisect_left(self._keys, key)
        before = shared_tokens(self._keys[at - 1][0], ids) if at else 0
        after = shared_tokens(ids, self._keys[at][0]) if at < len(self._keys) else 0
        if at < len(self._keys):
            self._shared[at] = after
        self._keys.insert(at, key)
        self._works.insert(at, work)
        self._shared.insert(at, before)
        if len(self._keys) == 1:
            return None
        is_before = at == len(self._keys) - 1 or (at > 0 and before >= after)
        return self._works[at - 1 if is_before else at + 1], max(before, after)

    def discard(self, work: Work) -> None:
        key = self._key_of.pop(work, None)
        if key is None:
            return
        at = bisect_left(self._keys, key)
        if at + 1 < len(self._keys):
            self._shared[at + 1] = min(self._shared[at], self._shared[at + 1])
        del self._keys[at], self._works[at], self._shared[at]

    def select(self, is_wanted: Callable[[Work], bool]) -> tuple[list[Work], list[int]]:
        """Some of them, in order, and how many tokens each shares with the one before it."""
        works: list[Work] = []
        shared: list[int] = []
        least = 0
        for work, with_previous in zip(self._works, self._shared, strict=True):
            least = min(least, with_previous)
            if is_wanted(work):
                works.append(work)
                shared.append(least)
                least = work.request.prompt_tokens
        return works, shared


def find_runs(lengths: Sequence[int], shared: Sequence[int], large: float) -> Iterator[Run]:
    """Cut prompts, in the order of their token ids, where neighbours do not belong together.
    ``shared``: with the one before.

    Where many documents follow the same long examples, it is by documents that they should be
    told apart: a run of more than ``large`` different tokens is cut further by what its prompts
    share beyond its prefix, where some do.
    """
    return _find_runs(lengths, shared, large, range(len(lengths)), 0, MAX_LEVELS)


def _find_runs(
    lengths: Sequence[int],
    shared: Sequence[int],
    large: float,
    within: range,
    common: int,
    levels: int,
) -> Iterator[Run]:
    cuts = [
        n
        for n in within[1:]
        if not belong_together(shared[n], max(lengths[n - 1], lengths[n]), common)
    ]
    for begin, end in itertools.pairwise((*within[:1], *cuts, within.stop)):
        if end - begin == 1:
            yield Run(begin, end, lengths[begin], common)
            continue
        overlap = shared[begin + 1 : end]
        prefix = min(overlap)
        inner: list[Run] = []
        if levels > 1 and sum(lengths[begin:end]) - sum(overlap) > large:
            part = range(begin, end)
            inner = list(_find_runs(lengths, shared, large, part, prefix, levels - 1))
        if all(run.is_alone for run in inner):
            yield Run(begin, end, prefix, common)
        else:
            yield from inner
