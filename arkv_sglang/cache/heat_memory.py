"""Heat of texts that outlives their tree nodes, so that a text need not earn it anew."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import torch

from arkv_sglang.cache.heat import Heat, heat_of

BLOCK_TOKENS = 64
MAX_BLOCKS = 65_536
"""4 million tokens of text, in about 16 MB of host memory."""


class HeatMemory:
    """Gives tree nodes their heat, and remembers it by blocks of text.

    A block is known by the hash of all text up to its end, so it is the same one in whatever nodes
    it is stored, now or later. Blocks that were not asked for longest are forgotten first.

    Only attention to text that was seen before counts: the text that a request brings along always
    has a share, and its last tokens the largest, whether or not anybody asks for it again.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self._blocks: OrderedDict[bytes, Heat] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def warm(self, req: Any, attention: torch.Tensor, now: float) -> None:
        """Add the mass that each prompt token received, fp32 [T], to the nodes of the prompt.

        In units of the mean token's, else a long prompt's tokens would be cold for its length.
        """
        end = attention.shape[0]
        lift = [0.0, *(attention.cumsum(0) * end).tolist()]
        namespace = repr((req.extra_key, req.cache_salt or None)).encode()
        blocks = self._add(req.full_untruncated_fill_ids, namespace, lift, now)
        node = req.last_node
        while end > 0:
            start = end - len(node.value)
            # SGLang counts the request that made a node as its first hit.
            if node.hit_count > 1:
                heat_of(node).add((lift[end] - lift[start]) / len(node.value), now)
            else:
                whole = blocks[-(-start // BLOCK_TOKENS) : end // BLOCK_TOKENS]
                node.heat = Heat(sum(whole) * BLOCK_TOKENS / len(node.value), now)
            node, end = node.parent, start

    def _add(
        self, token_ids: array[int], namespace: bytes, lift: list[float], now: float
    ) -> list[float]:
        """Note one request; returns the heat per token of each whole block of its text.

        ``lift``: attention to all tokens before each place. Nothing is shared between namespaces.
        """
        found, text = [], blake2b(namespace, digest_size=16)
        for start, end in pairwise(range(0, len(lift), BLOCK_TOKENS)):
            text.update(token_ids[start:end].tobytes())
            name = text.digest()
            heat = self._blocks.pop(name, None)
            if heat is None:
                heat = Heat(0.0, now)
            else:
                heat.add((lift[end] - lift[start]) / BLOCK_TOKENS, now)
            self._blocks[name] = heat
            found.append(heat.mass)
        while len(self._blocks) > self.max_blocks:
            self._blocks.popitem(last=False)
        return found
