"""What has been read and waits for an engine, in the order in which it should go."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from arkv_sglang.batch.lane import Work


class Waiting:
    """Work, longest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Work]] = []
        self._order = itertools.count()

    def push(self, work: Work) -> None:
        heapq.heappush(self._heap, (-work.request.prompt_tokens, next(self._order), work))

    @property
    def longest(self) -> Work | None:
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Work:
        """Take the longest."""
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Work]:
        """In no order."""
        return (entry[2] for entry in self._heap)
