"""Failures by reason: the same sentence about different documents is one reason."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

MAX_REASONS = 50
MAX_EXAMPLES = 3
# What differs from document to document: numbers, and names in quotes.
_PARTICULAR = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*(?<![,.])")


def failure_reasons(failed: pa.Table) -> list[dict[str, Any]]:
    """The most frequent first. What differs within a reason is left out of its sentence."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in failed.select(["doc_id", "status", "error"]).to_pylist():
        general = _PARTICULAR.sub("…", row["error"] or "")
        groups.setdefault((row["status"], general), []).append(row)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [
        {
            "status": status,
            "reason": general if len({row["error"] for row in rows}) > 1 else rows[0]["error"],
            "documents": len(rows),
            "example_doc_ids": [row["doc_id"] for row in rows[:MAX_EXAMPLES]],
        }
        for (status, general), rows in ordered[:MAX_REASONS]
    ]
