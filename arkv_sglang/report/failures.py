"""Failures by reason: the same sentence about different documents is one reason."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

MAX_REASONS = 50
MAX_EXAMPLES = 3
# What may differ from document to document: numbers, and names in quotes.
_PARTICULAR = re.compile(r"('[^']*'|\"[^\"]*\"|\d[\d,.]*(?<![,.]))")


@dataclass(slots=True)
class _Reason:
    """``parts`` of the sentence: what is common to all, and in between what may differ."""

    parts: list[str]
    documents: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, doc_id: str, parts: list[str]) -> None:
        self.parts = [a if a == b else "…" for a, b in zip(self.parts, parts, strict=True)]
        self.documents += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(doc_id)


def failure_reasons(failed: pa.Table) -> list[dict[str, Any]]:
    """The most frequent first. What differs within a reason is left out of its sentence."""
    reasons: dict[tuple[str, ...], _Reason] = {}
    for row in failed.select(["doc_id", "status", "error"]).to_pylist():
        parts = _PARTICULAR.split(row["error"] or "")
        found = reasons.setdefault((row["status"], *parts[::2]), _Reason(parts))
        found.add(row["doc_id"], parts)
    ordered = sorted(reasons.items(), key=lambda item: (-item[1].documents, item[0]))
    return [
        {
            "status": status,
            "reason": "".join(reason.parts),
            "documents": reason.documents,
            "example_doc_ids": reason.examples,
        }
        for (status, *_), reason in ordered[:MAX_REASONS]
    ]
