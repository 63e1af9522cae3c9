"""What has been read and waits for an engine, and which of it an engine should have next.

Work whose prompts begin alike is a group: it goes to one engine, which computes the prefix once.
The group that takes the most goes first. What is in flight attracts what is read after it.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import insort_left
from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter

from arkv_sglang.batch.lane import Group, Lane, Work
from arkv_sglang.batch.prefixes import PromptIndex, belong_together, find_runs
from arkv_sglang.batch.task import Task

# A group of more than this part of an engine's share is rather several, if it can be.
LARGE = 1 / 8
# Groups are found anew when so much of what waits has come since.
STALE = 1 / 8


class Waiting:
    """An engine that has room asks for an `offer`, and then may `take` it."""

    def __init__(self, max_new_tokens: int, engines: int = 1, group_prefixes: bool = True) -> None:
        """``max_new_tokens``: of an answer whose request says nothing else."""
        self.prompt_tokens = 0
        self.new_tokens = 0
        self._max_new_tokens = max_new_tokens
        self._engines = engines
        self._index = PromptIndex() if group_prefixes else None
        self._works: dict[Work, None] = {}
        self._free: list[tuple[tuple[bool, int], int, Group]] = []
        self._owned: dict[Lane, dict[Group, None]] = {}
        self._number = itertools.count()
        self._num_fresh = 0

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        """As they came."""
        return iter(self._works)

    def push(self, work: Work) -> None:
        """What is part of a document that was cut goes before all that is whole, and by itself:
        so few documents are half done."""
        request, turn = work.request, work.task.turn
        work.answer_tokens = request.sampling.get("max_new_tokens", self._max_new_tokens)
        self._works[work] = None
        self.prompt_tokens += request.prompt_tokens
        if turn is None:
            self._num_fresh += 1
            group = self._relatives(work) or self._new_group(request.prompt_tokens)
        else:
            group = self._new_group(request.prompt_tokens, turn=turn)
        self._join(group, work)

    def offer(self, lane: Lane) -> Work | None:
        """What the lane should run next: what has a turn; of its own groups; of the group that
        takes the most, of those that nobody has begun; or of another's that would be late."""
        group = self._next_turn() or self._own(lane) or self._largest() or self._to_share(lane)
        return group.waiting[-1] if group else None

    def is_for(self, lane: Lane, work: Work) -> bool:
        """Whether the lane has begun its group, and no other would help with what is left of it."""
        group = work.group
        assert group is not None
        again = group.prefix_tokens + work.own_tokens
        return lane in group.owners and self._backlog(lane) <= again

    def take(self, lane: Lane, work: Work) -> None:
        """It is in flight, and the lane's engine has its prefix."""
        group = self._leave(work)
        if lane not in group.owners:
            with self._changing(group):
                group.owners.append(lane)
            if group.waiting:
                self._owned.setdefault(lane, {})[group] = None

    def remove(self, work: Work) -> None:
        """It is not wanted any more."""
        self._leave(work)
        self.finished(work)

    def drop(self, task: Task) -> None:
        """None of a document's work is wanted any more."""
        for work in [work for work in self._works if work.task is task]:
            self.remove(work)

    def finished(self, work: Work) -> None:
        """It is in flight no more."""
        if self._index:
            self._index.discard(work)

    def release(self, lane: Lane) -> None:
        """The lane's engine is gone, and with it the prefixes that it had."""
        groups = self._owned.pop(lane, {}) | {w.group: None for w in lane.in_flight if w.group}
        for group in groups:
            if lane in group.owners:
                with self._changing(group):
                    group.owners.remove(lane)

    # Groups

    def _join(self, group: Group, work: Work) -> None:
        work.group = group
        with self._changing(group):
            insort_left(group.waiting, work, key=lambda each: each.request.prompt_tokens)
            group.waiting_tokens += work.request.prompt_tokens + work.answer_tokens
        for owner in group.owners:
            self._owned.setdefault(owner, {})[group] = None

    def _leave(self, work: Work) -> Group:
        group = work.group
        assert group is not None
        del self._works[work]
        self.prompt_tokens -= work.request.prompt_tokens
        with self._changing(group):
            group.waiting.remove(work)
            group.waiting_tokens -= work.request.prompt_tokens + work.answer_tokens
        if not group.waiting:
            for owner in group.owners:
                self._owned[owner].pop(group, None)
        return group

    @contextmanager
    def _changing(self, group: Group) -> Iterator[None]:
        """Keeps the sum, and queues the group anew: `_largest` passes over its old places."""
        self.new_tokens -= group.new_tokens
        yield
        self.new_tokens += group.new_tokens
        if group.waiting and not group.owners:
            heapq.heappush(self._free, (group.rank, group.number, group))

    def _new_group(
        self, prefix_tokens: int, common_tokens: int = 0, turn: int | None = None
    ) -> Group:
        return Group(next(self._number), prefix_tokens, common_tokens, turn)

    def _relatives(self, work: Work) -> Group | None:
        """The group of the one that begins most like it, if they belong together."""
        nearest = self._index.add(work) if self._index else None
        if nearest is None:
            return None
        other, shared = nearest
        group = other.group
        assert group is not None
        longer = max(other.request.prompt_tokens, work.request.prompt_tokens)
        if not belong_together(shared, longer, group.common_tokens):
            return None
        with self._changing(group):
            group.prefix_tokens = min(group.prefix_tokens, shared)
        return group

    def _regroup(self, index: PromptIndex) -> None:
        """All that nobody has begun, by all that waits."""
        works, shared = index.select(
            lambda work: work in self._works and work.group is not None and not work.group.owners
        )
        large = LARGE * self.new_tokens / self._engines
        self._free = [entry for entry in self._free if entry[-1].turn is not None]
        heapq.heapify(self._free)
        self._num_fresh = 0
        for group in {work.group for work in works if work.group}:
            self.new_tokens -= group.new_tokens
            group.waiting, group.waiting_tokens = [], 0
        lengths = [work.request.prompt_tokens for work in works]
        for run in find_runs(lengths, shared, large):
            group = self._new_group(run.prefix_tokens, run.common_tokens)
            for work in works[run.begin : run.end]:
                self._join(group, work)

    # What to offer

    def _next_turn(self) -> Group | None:
        first = self._first()
        return first if first and first.turn is not None else None

    def _own(self, lane: Lane) -> Group | None:
        """The one that it began first, so that few prefixes need memory at once."""
        return next(iter(self._owned.get(lane, ())), None)

    def _largest(self) -> Group | None:
        if self._index and self._num_fresh > STALE * len(self._works):
            self._regroup(self._index)
        return self._first()

    def _first(self) -> Group | None:
        while self._free:
            rank, _, group = self._free[0]
            if group.waiting and not group.owners and rank == group.rank:
                return group
            heapq.heappop(self._free)
        return None

    def _to_share(self, lane: Lane) -> Group | None:
        begun = {group: None for groups in self._owned.values() for group in groups}
        late = (group for group in begun if self._is_late(group, lane))
        return max(late, key=lambda group: group.new_tokens, default=None)

    def _is_late(self, group: Group, lane: Lane) -> bool:
        """Whether it will be done sooner if the lane takes one, and computes the prefix again."""
        again = group.prefix_tokens + group.waiting[-1].own_tokens
        backlog, owner = min(((self._backlog(own), own) for own in group.owners), key=itemgetter(0))
        sooner = lane.in_flight_tokens + again < owner.in_flight_tokens + backlog
        return again < backlog and sooner

    def _backlog(self, lane: Lane) -> float:
        """Tokens that wait for the lane, if all who have begun a group do equal parts of it."""
        return sum(group.new_tokens / len(group.owners) for group in self._owned.get(lane, ()))
