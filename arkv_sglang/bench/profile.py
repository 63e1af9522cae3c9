"""How a prompt's attention spreads over its parts: recorded from one prompt, drawn for another."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

WINDOW = 32
"""The last queries, whose attention counts: `ArkvConfig.window`."""

PARTS = {"sink": 1, "instruction": 4, "document": 10, "question": 4, "window": 8}
"""Buckets of each part, in the order of the text. ``sink`` is the first token of the instruction;
``window`` the last 32 tokens of the prompt, ``question`` what stands before it after the document.
"""
NUM_BUCKETS = sum(PARTS.values())


@dataclass(frozen=True)
class Profile:
    """Attention mass by bucket of one recorded prompt: fp32 [`NUM_BUCKETS`], sums to 1.

    ``lengths``: tokens of instruction, document and tail (question and window together).
    """

    doc_id: str
    lengths: tuple[int, int, int]
    mass: torch.Tensor

    def as_record(self) -> dict[str, Any]:
        parts = zip(PARTS, self.mass.split(list(PARTS.values())), strict=True)
        return {
            "doc_id": self.doc_id,
            "tokens": list(self.lengths),
            "mass": {name: [float(f"{x:.4g}") for x in part.tolist()] for name, part in parts},
        }


def load_profiles(path: Path) -> list[Profile]:
    """Those that `record_attention` wrote."""
    profiles = []
    for record in json.loads(path.read_text())["profiles"]:
        mass = torch.tensor([x for name in PARTS for x in record["mass"][name]])
        profiles.append(Profile(record["doc_id"], tuple(record["tokens"]), mass / mass.sum()))
    return profiles


def bucketed(attention: torch.Tensor, lengths: tuple[int, int, int]) -> torch.Tensor:
    """Mass of ``attention`` fp32 [T] by bucket, fp32 [`NUM_BUCKETS`]."""
    index = buckets(lengths)
    return torch.zeros(NUM_BUCKETS).index_add_(0, index, attention.float())


def stretched(mass: torch.Tensor, lengths: tuple[int, int, int]) -> torch.Tensor:
    """A prompt of other ``lengths`` whose parts get the same ``mass``, fp32 [T]; sums to 1.

    Within a bucket every token gets the same.
    """
    index = buckets(lengths)
    counts = index.bincount(minlength=NUM_BUCKETS)
    spread = (mass / counts.clamp_min(1))[index]
    return spread / spread.sum()


def buckets(lengths: tuple[int, int, int]) -> torch.Tensor:
    """The bucket of each token, int64 [T]. The tail must be longer than the window."""
    instruction, document, tail = lengths
    sizes = (1, instruction - 1, document, tail - WINDOW, WINDOW)
    first, found = 0, []
    for size, count in zip(sizes, PARTS.values(), strict=True):
        found.append(first + torch.arange(size) * count // size)
        first += count
    return torch.cat(found)
