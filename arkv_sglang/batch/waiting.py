"""What has been read and waits for an engine, in the order in which it should go."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from arkv_sglang.batch.lane import Work
from arkv_sglang.batch.task import Task


class Waiting:
    """Work: of documents that were cut, one after the other, so that few are half done; then whole
    documents, longest first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Work]] = []
        self._order = itertools.count()

    def push(self, work: Work) -> None:
        turn = work.task.turn
        rank = (1, -work.request.prompt_tokens) if turn is None else (0, turn)
        heapq.heappush(self._heap, (*rank, next(self._order), work))

    @property
    def first(self) -> Work | None:
        return self._heap[0][-1] if self._heap else None

    def pop(self) -> Work:
        """Take the first."""
        return heapq.heappop(self._heap)[-1]

    def drop(self, task: Task) -> None:
        """Take out all work of a document."""
        self._heap = [entry for entry in self._heap if entry[-1].task is not task]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Work]:
        """In no order."""
        return (entry[-1] for entry in self._heap)
