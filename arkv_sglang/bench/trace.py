"""The request trace that `replay` runs: one instruction, popular documents, and scans.

Every request is the shared instruction, a document, and a question of its own. A share of the
requests picks its document from a fixed set by Zipf's law; the others bring one that nobody asks
about again. Token ids stand for texts: no two texts share one, so prefixes match as whole texts.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np


@dataclass(frozen=True)
class TraceSettings:
    """What a trace is drawn from; lengths in tokens, inclusive.

    Shared documents have the lengths of the demo corpus, what is sent once a third of them: people
    ask again about handbooks, less about mails. Both are log-uniform, many short ones and a few
    long ones, and go round evenly instead of by chance, so that no accident of the seed makes the
    most popular documents long. Tail lengths are uniform and longer than the window of queries that
    scores a prompt.
    """

    num_requests: int = 2_000
    num_shared: int = 200
    zipf: float = 0.9
    scan_ratio: float = 0.3
    instruction_len: int = 64
    min_document_len: int = 600
    max_document_len: int = 6_000
    min_scan_len: int = 200
    max_scan_len: int = 2_000
    min_tail_len: int = 40
    max_tail_len: int = 60
    seed: int = 0


@dataclass(frozen=True)
class Request:
    """``lengths``: tokens of instruction, document and tail. ``document``: -1 for a scan's."""

    token_ids: array[int]
    lengths: tuple[int, int, int]
    document: int


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival."""

    settings: TraceSettings
    requests: list[Request]

    @property
    def num_tokens(self) -> int:
        return sum(len(request.token_ids) for request in self.requests)

    @property
    def num_unique_tokens(self) -> int:
        """Tokens of the radix tree that holds the whole trace."""
        documents = {
            (request.document, request.token_ids[request.lengths[0]]): request.lengths[1]
            for request in self.requests
        }
        tails = sum(request.lengths[2] for request in self.requests)
        return self.settings.instruction_len + sum(documents.values()) + tails


SHORT_SCANS = TraceSettings()
LONG_SCANS = TraceSettings(
    min_scan_len=TraceSettings.min_document_len, max_scan_len=TraceSettings.max_document_len
)
"""What is sent once is as long as what is shared."""


def build_trace(settings: TraceSettings) -> Trace:
    """The same settings give the same trace."""
    rng = np.random.default_rng(settings.seed)
    texts = _Texts()
    instruction = texts.new(settings.instruction_len)
    document_len = _lengths(settings.min_document_len, settings.max_document_len)
    scan_len = _lengths(settings.min_scan_len, settings.max_scan_len)
    shared = [texts.new(next(document_len)) for _ in range(settings.num_shared)]
    weights = 1 / np.arange(1, settings.num_shared + 1) ** settings.zipf
    weights /= weights.sum()
    requests = []
    for _ in range(settings.num_requests):
        if rng.random() < settings.scan_ratio:
            index, document = -1, texts.new(next(scan_len))
        else:
            index = int(rng.choice(settings.num_shared, p=weights))
            document = shared[index]
        tail = texts.new(int(rng.integers(settings.min_tail_len, settings.max_tail_len + 1)))
        lengths = (len(instruction), len(document), len(tail))
        requests.append(Request(instruction + document + tail, lengths, index))
    return Trace(settings, requests)


def _lengths(shortest: int, longest: int) -> Iterator[int]:
    # Multiples of the golden ratio fill the quantiles evenly at every length of the sequence.
    golden = (math.sqrt(5) - 1) / 2
    for index in count(1):
        yield int(shortest * (longest / shortest) ** (index * golden % 1))


class _Texts:
    """Hands out texts of token ids that were never used before."""

    def __init__(self) -> None:
        self._next = 0

    def new(self, num_tokens: int) -> array[int]:
        self._next += num_tokens
        return array("q", range(self._next - num_tokens, self._next))
