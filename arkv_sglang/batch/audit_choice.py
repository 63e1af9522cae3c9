"""Which documents are audited, and how they are done again."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from arkv_sglang.batch.config import AuditConfig, JobConfig, is_greedy
from arkv_sglang.batch.types import BadDocument, Document, Source

RANDOM = "its sampling is random, so two answers differ without compression, too"


def num_audited(num_documents: int, fraction: float) -> int:
    """At least one of any; reckoned as the fraction is written, so that 0.07 of 100 is 7."""
    return math.ceil(Fraction(repr(fraction)) * num_documents)


def choose(doc_ids: Sequence[str], fraction: float, seed: int) -> list[str]:
    """At random, and the same ones in the same order whatever order ``doc_ids`` have."""

    def rank(doc_id: str) -> bytes:
        return hashlib.blake2b(f"{seed} {doc_id}".encode(), digest_size=16).digest()

    return heapq.nsmallest(num_audited(len(doc_ids), fraction), doc_ids, key=rank)


def full_kv(config: JobConfig) -> JobConfig:
    """The same without compression."""
    engine = {key: value for key, value in config.engine.items() if key != "kv_policy_config"}
    return config.model_copy(
        update={"engine": engine | {"kv_policy": "none"}, "audit": AuditConfig()}
    )


def without_random(source: Iterable[Document | BadDocument], sampling: Mapping[str, Any]) -> Source:
    """Requests that override the job's ``sampling`` with a random one become bad documents."""
    for document in source:
        is_random = isinstance(document, Document) and not is_greedy(
            {**sampling, **document.sampling}
        )
        yield BadDocument(document.doc_id, RANDOM) if is_random else document
