"""The tiers of a tree node's rows: one for each whole layer, so that the node stays complete."""

from __future__ import annotations

from typing import Any

from arkv_sglang.core import ROW_UNITS, Tier


def quantized_layers(node: Any) -> frozenset[int]:
    """Layers in which every row of the node is QUANTIZED; in the others every one is ORIGINAL."""
    found: frozenset[int] = getattr(node, "quantized_layers", frozenset())
    return found


def rows_by_tier(node: Any, num_layers: int) -> dict[Tier, int]:
    """Rows of the node over all layers."""
    tokens, quantized = len(node.value), len(quantized_layers(node))
    return {
        Tier.ORIGINAL: tokens * (num_layers - quantized),
        Tier.QUANTIZED: tokens * quantized,
    }


def node_units(node: Any, num_layers: int) -> int:
    """Arena units of the node's rows."""
    return sum(ROW_UNITS[tier] * n for tier, n in rows_by_tier(node, num_layers).items())
