"""The buddy allocator alone, for two and for three row sizes."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arkv_sglang.storage.allocator import OutOfUnits, UnitAllocator


class Owners:
    """Blocks in use, with the tags that each unit must keep when blocks are moved."""

    def __init__(self, num_units: int, sizes: tuple[int, ...]) -> None:
        self.tags = [0] * num_units
        self.blocks: dict[int, tuple[int, int]] = {}
        self.allocator = UnitAllocator(num_units, sizes, self.relocate, "cpu")
        self.moved = 0

    def relocate(self, src: torch.Tensor, dst: torch.Tensor, size: int) -> None:
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            self.tags[b : b + size] = self.tags[a : a + size]
            for tag, (unit, own) in self.blocks.items():
                if a <= unit < a + size:
                    assert own <= size
                    self.blocks[tag] = (unit - a + b, own)
                    self.moved += 1

    def take(self, size: int, n: int) -> None:
        for unit in self.allocator.take(size, n).tolist():
            tag = max(self.blocks, default=0) + 1
            self.blocks[tag] = (unit, size)
            self.tags[unit : unit + size] = [tag] * size

    def give(self, size: int, n: int, choice: random.Random) -> None:
        mine = [tag for tag, (_, own) in self.blocks.items() if own == size]
        gone = choice.sample(mine, min(n, len(mine)))
        units = torch.tensor([self.blocks.pop(tag)[0] for tag in gone], dtype=torch.int64)
        self.allocator.give(size, units)

    def check(self) -> None:
        owned = [u for unit, size in self.blocks.values() for u in range(unit, unit + size)]
        free = [
            unit + i
            for size in self.allocator.sizes
            for unit in self.allocator.free_blocks(size).tolist()
            for i in range(size)
        ]
        assert sorted(owned + free) == list(range(self.allocator.num_units))
        assert len(free) == self.allocator.free_units
        assert all(unit % size == 0 for unit, size in self.blocks.values())
        for tag, (unit, size) in self.blocks.items():
            assert self.tags[unit : unit + size] == [tag] * size


@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 4), (1, 2, 4, 8)], ids=str)
@given(data=st.data(), seed=st.integers(0, 1 << 16))
@settings(max_examples=40, deadline=None)
def test_allocation_fails_only_when_the_units_are_gone(
    sizes: tuple[int, ...], data: st.DataObject, seed: int
) -> None:
    choice = random.Random(seed)
    owners = Owners(48, sizes)
    for _ in range(data.draw(st.integers(1, 40))):
        size, n = choice.choice(sizes), choice.randint(1, 12)
        if choice.random() < 0.4:
            owners.give(size, n, choice)
        elif n * size <= owners.allocator.free_units:
            owners.take(size, n)
        else:
            with pytest.raises(OutOfUnits):
                owners.take(size, n)
        owners.check()
    for size in sizes:
        owners.give(size, 48, choice)
    owners.check()
    owners.take(sizes[-1], 48 // sizes[-1])


def test_merging_needs_no_moves() -> None:
    owners = Owners(8, (1, 2))
    owners.take(1, 8)
    owners.give(1, 8, random.Random(0))
    owners.take(2, 4)
    assert owners.moved == 0


def test_pairing_moves_half_of_the_half_used_blocks_once() -> None:
    owners = Owners(16, (1, 2))
    owners.take(1, 16)
    gone = [tag for tag, (unit, _) in owners.blocks.items() if unit % 2]
    units = [owners.blocks.pop(tag)[0] for tag in gone]
    owners.allocator.give(1, torch.tensor(units))
    for _ in range(4):
        owners.take(2, 1)
    owners.check()
    assert owners.moved == 4


@pytest.mark.parametrize("sizes", [(2,), (1, 4)], ids=str)
def test_sizes_must_double_from_one(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes must be 1, 2, 4"):
        UnitAllocator(8, sizes, lambda src, dst, size: None, "cpu")


def test_units_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="whole blocks of 2, got 7"):
        UnitAllocator(7, (1, 2), lambda src, dst, size: None, "cpu")
