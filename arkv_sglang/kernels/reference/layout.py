"""Ragged lists of rows cut into equal blocks, so that batched products loop over no requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

BLOCK = 128
"""Rows of a block. A request wastes less than one block."""


@dataclass(frozen=True)
class BlockLayout:
    """Where the rows of ragged lists stand in N blocks. Index tensors are int64.

    ``source`` [N, BLOCK]: position in the flat list; places after a list's end repeat its last row.
    ``request`` [N]: whose block it is.
    ``padding`` [N, BLOCK]: true for the places after a list's end.
    ``places`` [total]: the place, in the flattened blocks, of each position of the flat list.
    """

    source: torch.Tensor
    request: torch.Tensor
    padding: torch.Tensor
    places: torch.Tensor

    @property
    def num_blocks(self) -> int:
        return self.request.numel()


@lru_cache(maxsize=8)  # the layers of a step mostly have the same lengths
def block_layout(lens: tuple[int, ...], device: torch.device) -> BlockLayout:
    length = torch.tensor(lens, dtype=torch.int64)
    blocks = (length + BLOCK - 1) // BLOCK
    request = torch.repeat_interleave(blocks)
    first_block = (blocks.cumsum(0) - blocks)[request]
    within = (torch.arange(request.numel()) - first_block)[:, None] * BLOCK + torch.arange(BLOCK)
    last = length[request][:, None] - 1
    start = (length.cumsum(0) - length)[request][:, None]
    padding = within > last
    places = (~padding).flatten().nonzero().squeeze(1)
    source = start + torch.minimum(within, last)
    return BlockLayout(*(t.to(device) for t in (source, request, padding, places)))
