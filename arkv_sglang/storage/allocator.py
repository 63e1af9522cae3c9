"""Which arena units are free: a buddy allocator whose free lists are device tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Relocate = Callable[[torch.Tensor, torch.Tensor, int], None]
"""``relocate(src, dst, size)``: move what lives in the blocks of ``size`` units that begin at
``src`` (int32 [n]) to those that begin at ``dst``, and tell its owners."""


class OutOfUnits(RuntimeError):
    """The bytes are really gone. Nothing changed; reclaim ``needed - free`` units and try again."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} arena units needed, {free} free")
        self.needed = needed
        self.free = free


class UnitAllocator:
    """Free blocks of 1, 2, 4, ... units, one stack (int32, first unit of each block) per size.

    A block is aligned to its size. Stack heights live on the host, so taking and giving back need
    no device sync. Only a size that runs dry costs more: larger blocks are cut, else free buddies
    merged, else all half-used blocks paired up by moving rows; the last two read the device once.
    Pairing leaves no free half behind, so it cannot recur before as many halves were freed again.
    """

    def __init__(
        self,
        num_units: int,
        sizes: Sequence[int],
        relocate: Relocate,
        device: torch.device | str,
    ) -> None:
        self.sizes = tuple(sorted(sizes))
        if self.sizes != tuple(1 << order for order in range(len(self.sizes))):
            raise ValueError(f"sizes must be 1, 2, 4, ..., got {self.sizes}")
        if num_units % self.sizes[-1]:
            raise ValueError(f"num_units must be whole blocks of {self.sizes[-1]}, got {num_units}")
        self.num_units = num_units
        self._relocate = relocate
        self._stacks = [
            torch.empty(num_units // size, dtype=torch.int32, device=device) for size in self.sizes
        ]
        self._heights = [0] * len(self.sizes)
        self.reset()

    @property
    def free_units(self) -> int:
        """Free units of all sizes together."""
        return sum(h * size for h, size in zip(self._heights, self.sizes, strict=True))

    @property
    def num_bytes(self) -> int:
        """Bytes of the free lists."""
        return sum(stack.nbytes for stack in self._stacks)

    def reset(self) -> None:
        """Everything free, in the largest blocks."""
        self._heights = [0] * len(self.sizes)
        top = self._stacks[-1]
        self._heights[-1] = len(top)
        # Low units on top: an arena that is never full touches only its beginning.
        torch.arange(len(top) - 1, -1, -1, out=top)
        top *= self.sizes[-1]

    def take(self, size: int, n: int) -> torch.Tensor:
        """First units (int32 [n], the caller's) of ``n`` blocks. Raises ``OutOfUnits``."""
        if n * size > self.free_units:
            raise OutOfUnits(n * size, self.free_units)
        order = self.sizes.index(size)
        if self._heights[order] < n:
            self._split_into(order, n)
        if self._heights[order] < n:
            self._merge_into(order)
        if self._heights[order] < n:
            self._pair_into(order)
        return self._pop(order, n)

    def give(self, size: int, units: torch.Tensor) -> None:
        """Free the blocks of ``size`` that begin at ``units`` [n] (any int dtype)."""
        self._push(self.sizes.index(size), units)

    def give_tails(self, units: torch.Tensor, old_size: int, new_size: int) -> None:
        """Free what blocks at ``units`` give up when they shrink to ``new_size``."""
        for size in self.sizes:
            if new_size <= size < old_size:
                self.give(size, units + size)

    def free_blocks(self, size: int) -> torch.Tensor:
        """Read-only int32 view of the free list of ``size``."""
        order = self.sizes.index(size)
        return self._stacks[order][: self._heights[order]]

    def _pop(self, order: int, n: int) -> torch.Tensor:
        self._heights[order] -= n
        height = self._heights[order]
        return self._stacks[order][height : height + n].clone()

    def _push(self, order: int, units: torch.Tensor) -> None:
        height = self._heights[order]
        self._stacks[order][height : height + len(units)] = units
        self._heights[order] = height + len(units)

    def _replace(self, order: int, units: torch.Tensor) -> None:
        self._heights[order] = 0
        self._push(order, units)

    def _split_into(self, order: int, n: int) -> None:
        """Cut larger blocks until ``n`` of this order are free, or no larger one is."""
        missing = n - self._heights[order]
        if missing <= 0 or order + 1 == len(self.sizes):
            return
        wanted = -(-missing // 2)
        self._split_into(order + 1, wanted)
        blocks = self._pop(order + 1, min(wanted, self._heights[order + 1]))
        self._push(order, torch.cat([blocks, blocks + self.sizes[order]]))

    def _merge_into(self, order: int) -> None:
        """Turn free buddies of the smaller orders into blocks of this one; leaves them sorted."""
        if order == 0:
            return
        self._merge_into(order - 1)
        half = self.sizes[order - 1]
        free = self.free_blocks(half).sort().values
        whole = (free[:-1] + half == free[1:]) & (free[:-1] & half == 0)
        alone = torch.ones(len(free), dtype=torch.bool, device=free.device)
        alone[:-1] &= ~whole
        alone[1:] &= ~whole
        self._replace(order - 1, free[alone])
        self._push(order, free[:-1][whole])

    def _pair_into(self, order: int) -> None:
        """After a merge: empty the used buddies of half the free blocks into the other half."""
        if order == 0:
            return
        self._pair_into(order - 1)
        self._merge_into(order)
        half = self.sizes[order - 1]
        free = self.free_blocks(half).clone()
        n = len(free) // 2
        if n == 0:
            return
        emptied, filled, rest = free[:n], free[n : 2 * n], free[2 * n :]
        used = emptied ^ half
        self._relocate(used, filled, half)
        self._move_free_pieces(used, filled, half)
        self._replace(order - 1, rest)
        self._push(order, emptied & ~half)

    def _move_free_pieces(self, src: torch.Tensor, dst: torch.Tensor, size: int) -> None:
        """Free pieces inside moved blocks move along. Pairing left at most one of each size."""
        for smaller in self.sizes[: self.sizes.index(size)]:
            pieces = self.free_blocks(smaller)
            inside = (pieces & ~(size - 1))[:, None] == src
            pieces += (inside * (dst - src)).sum(dim=1).to(torch.int32)
