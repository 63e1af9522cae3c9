"""A log of what reads, writes and moves rows, in order, and a checker of that order.

Rows have two names. Logically each is one token's of one slot or view, whatever its place; that is
its tag. Physically it is some units of the arena. A forward knows where to read by row codes that
were made before it ran, so what stands in those units when it runs must be the rows that it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from arkv_sglang.core import ROW_UNITS, Tier, row_tier, row_unit
from arkv_sglang.storage.views import RequestView

Place = tuple[int, int]
"""First unit of a row, and how many it takes."""
Tag = tuple[int, int]
"""A token of a slot or view, and the layer."""


@dataclass
class Forward:
    """One layer of one pass: rows written, and then rows read, each with the tag that is meant."""

    writes: list[tuple[Place, Tag]] = field(default_factory=list)
    reads: list[tuple[Place, Tag]] = field(default_factory=list)


@dataclass
class Move:
    """Rows copied from place to place, all read before any is written."""

    pairs: list[tuple[Place, Place]]
    # What they read in the order of the log, from `links`.
    tags: list[Tag | None] | None = None


Operation = Forward | Move


def places(rows: Any) -> list[Place | None]:
    """Of row codes; None where there is no row."""
    tiers = row_tier(rows).tolist()
    units = row_unit(rows).tolist()
    return [
        None if tier < 0 else (unit, ROW_UNITS[Tier(tier)])
        for tier, unit in zip(tiers, units, strict=True)
    ]


class Arena:
    """What stands in each unit: the tag, how many units the row has, and which this is."""

    def __init__(self) -> None:
        self._content: dict[int, tuple[Tag | None, int, int]] = {}

    def read(self, place: Place) -> Tag | None:
        """The tag of the whole row at ``place``; None if there is no such row."""
        unit, width = place
        parts = [self._content.get(unit + i) for i in range(width)]
        tag = parts[0][0] if parts[0] else None
        return tag if parts == [(tag, width, i) for i in range(width)] else None

    def write(self, place: Place, tag: Tag | None) -> None:
        unit, width = place
        for i in range(width):
            self._content[unit + i] = (tag, width, i)

    def run(self, operation: Operation) -> Iterator[str]:
        """Each read of the operation that meets something else than it means."""
        if isinstance(operation, Move):
            found = [self.read(src) for src, _ in operation.pairs]
            if operation.tags is not None and found != operation.tags:
                yield f"a move copies {found} and means {operation.tags}"
            for tag, (_, dst) in zip(found, operation.pairs, strict=True):
                self.write(dst, tag)
            return
        for place, tag in operation.writes:
            self.write(place, tag)
        for place, tag in operation.reads:
            if (met := self.read(place)) != tag:
                yield f"a forward reads {met} at {place} and means {tag}"


def faults(log: list[Operation]) -> Iterator[str]:
    arena = Arena()
    for index, operation in enumerate(log):
        for fault in arena.run(operation):
            yield f"operation {index}: {fault}"


def links(log: list[Operation]) -> list[tuple[int, int]]:
    """Each pair of a move and a forward of which the later must not run before the earlier.

    It reads what the earlier wrote, or overwrites what the earlier has read. Also notes in each
    move what it reads in this order.
    """
    arena = Arena()
    writer: dict[int, int] = {}
    reader: dict[int, int] = {}
    found: set[tuple[int, int]] = set()
    for index, operation in enumerate(log):
        if isinstance(operation, Move):
            operation.tags = [arena.read(src) for src, _ in operation.pairs]
            reads, writes = (list(each) for each in zip(*operation.pairs, strict=True))
        else:
            writes = [place for place, _ in operation.writes]
            reads = [place for place, _ in operation.reads if place not in set(writes)]
        before = {writer[unit] for unit in _units(reads) if unit in writer}
        before |= {reader[unit] for unit in _units(writes) if unit in reader}
        found |= {(earlier, index) for earlier in before if earlier != index}
        for _ in arena.run(operation):
            pass
        reader |= dict.fromkeys(_units(reads), index)
        for unit in _units(writes):
            writer[unit] = index
            reader.pop(unit, None)
    return sorted(
        (earlier, later)
        for earlier, later in found
        if isinstance(log[earlier], Move) != isinstance(log[later], Move)
    )


def _units(of: list[Place]) -> Iterator[int]:
    for unit, width in of:
        yield from range(unit, unit + width)


def swapped(log: list[Operation], earlier: int, later: int) -> list[Operation]:
    """The log with the later operation moved to just before the earlier one."""
    rest = [*log[:later], *log[later + 1 :]]
    return [*rest[:earlier], log[later], *rest[earlier:]]


class Recorder:
    """Hangs itself into a scheduler's store, backend and kernels, and keeps the log."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.log: list[Operation] = []
        self._tags = count(1)
        self._of_slot: dict[int, int] = {}
        self._of_view: dict[int, dict[int, int]] = {}

    def install(self) -> None:
        from arkv_sglang.engine.backend import ArkvAttentionBackend
        from arkv_sglang.kernels import api

        # Rows from before are as if written now.
        first = Forward()
        for slot in (self.store.table.rows[0] >= 0).nonzero().flatten().tolist():
            self._of_slot[slot] = next(self._tags)
            for layer in range(len(self.store.table.rows)):
                first.writes += self._slots(layer, torch.tensor([slot]))
        self.log.append(first)
        for name in ("bind_slots", "create_view", "extend_view", "append_rows"):
            self._follow(name)
        move_rows = api.move_rows

        def move(arena: Any, src: Any, dst: Any) -> None:
            pairs = zip(places(src), places(dst), strict=True)
            if found := [(a, b) for a, b in pairs if a and b]:
                self.log.append(Move(found))
            move_rows(arena, src, dst)

        api.move_rows = move
        for name, record in (("forward_extend", self._extend), ("forward_decode", self._decode)):
            self._wrap_forward(ArkvAttentionBackend, name, record)

    def _follow(self, name: str) -> None:
        original, follow = getattr(self.store, name), getattr(self, f"_{name}")

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            follow(result, *args)
            return result

        setattr(self.store, name, wrapped)

    # Logical names

    def _bind_slots(self, _: None, slots: Any) -> None:
        for slot in slots.tolist():
            self._of_slot[slot] = next(self._tags)

    def _create_view(self, view: Any, slots: Any, plan: Any, positions: Any, *_: Any) -> None:
        pairs = zip(positions.tolist(), slots.tolist(), strict=True)
        self._of_view[id(view)] = {at: self._of_slot[slot] for at, slot in pairs}

    def _extend_view(self, _: None, view: Any, slots: Any, content: Any) -> None:
        positions = content.positions[0, -len(slots) :]
        tags = self._of_view.setdefault(id(view), {})
        for at, slot in zip(positions.tolist(), slots.tolist(), strict=True):
            tags[at] = self._of_slot[slot]

    def _append_rows(self, _: Any, views: Any, positions: Any) -> None:
        for view, at in zip(views, positions, strict=True):
            self._of_view[id(view)][at] = next(self._tags)

    # Forwards

    def _wrap_forward(self, owner: Any, name: str, record: Any) -> None:
        original = getattr(owner, name)

        def wrapped(backend: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kw: Any) -> Any:
            index = layer.layer_id - backend.pool.start_layer
            operation = Forward()
            record(backend.batch, index, operation)
            self.log.append(operation)
            return original(backend, q, k, v, layer, *args, **kw)

        setattr(owner, name, wrapped)

    def _extend(self, batch: Any, layer: int, operation: Forward) -> None:
        operation.writes += self._slots(layer, batch.new_slots)
        for prefix in batch.prefixes:
            if isinstance(prefix, RequestView):
                operation.reads += self._view(layer, prefix)
            else:
                operation.reads += self._slots(layer, prefix)

    def _decode(self, batch: Any, layer: int, operation: Forward) -> None:
        if batch.slots is not None:
            operation.writes += self._slots(layer, batch.slots.new_slots)
            operation.reads += self._slots(layer, batch.slots.kv_slots)
        if batch.views is not None:
            new = set(places(batch.views.new_rows[layer]))
            starts = set(batch.views.index.index.tolist())
            for view in self.store.lists.live:
                if view.width and view.start in starts:
                    rows = self._view(layer, view)
                    operation.reads += rows
                    operation.writes += [(place, tag) for place, tag in rows if place in new]

    def _slots(self, layer: int, slots: Any) -> list[tuple[Place, Tag]]:
        found = places(self.store.slot_rows(layer, slots.long()))
        return [
            (place, (self._of_slot[slot], layer))
            for place, slot in zip(found, slots.tolist(), strict=True)
            if place
        ]

    def _view(self, layer: int, view: Any) -> list[tuple[Place, Tag]]:
        span = slice(view.start, view.start + view.width)
        found = places(self.store.lists.rows[layer, span])
        positions = self.store.lists.positions[layer, span].tolist()
        tags = self._of_view[id(view)]
        return [
            (place, (tags[at], layer)) for place, at in zip(found, positions, strict=True) if place
        ]
