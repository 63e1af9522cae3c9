"""Ragged lists of rows cut into equal blocks, so that batched products loop over no requests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

BLOCK = 64
"""Rows of a block. A request wastes less than one block."""


@dataclass(frozen=True)
class BlockLayout:
    """Where the rows of ragged lists stand in N blocks. Index tensors are int64.

    ``source`` [N * BLOCK]: the position in the flat list of each place in the blocks; the places
    after a list's end (padding) repeat its last row.
    ``places`` [total]: the place of each position.
    ``request`` [N]: whose block it is.
    ``bias`` [N, 1, 1, BLOCK]: minus infinity at the padding, else 0, fp32.
    """

    source: torch.Tensor
    places: torch.Tensor
    request: torch.Tensor
    bias: torch.Tensor

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
    source = (start + torch.minimum(within, last)).flatten()
    bias = torch.zeros(padding.shape).masked_fill_(padding, float("-inf"))[:, None, None]
    return BlockLayout(*(t.to(device) for t in (source, places, request, bias)))
