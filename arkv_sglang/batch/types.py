"""The nouns of the batch job and the two protocols that it is written against."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

OK = "ok"
TOO_LONG = "too_long"
INVALID = "invalid"
ERROR = "error"
STATUSES = (OK, TOO_LONG, INVALID, ERROR)

# What a request for less than a document is for.
Part = Literal["map", "combine", "refine"]

# What a request's meta_info["arkv"] holds; rows are counted over all layers.
KV_KEYS = (
    "rows_original",
    "rows_quantized",
    "rows_evicted",
    "bytes_original",
    "bytes_quantized",
    "peak_rows_original",
    "peak_rows_quantized",
    "peak_bytes_original",
    "peak_bytes_quantized",
    "times_planned",
    "chunks_compressed",
)


class BatchError(RuntimeError):
    """Its message is one sentence for the person who started the run."""


class RunFailed(BatchError):
    """The run cannot go on."""


class EngineLost(BatchError):
    """The engine died, or never came up, with the request possibly half done."""


class RequestFailed(BatchError):
    """The engine is well and refused or failed this one request."""


def describe(error: Exception) -> str:
    """What happened, in one line. An error that is not ours is named: ``'text'`` alone is none."""
    message = " ".join(str(error).split())
    if isinstance(error, BatchError):
        return message
    name = type(error).__name__
    return f"{name}: {message}" if message else name


@dataclass(frozen=True, slots=True)
class Document:
    """A text to summarize, or, with a ``prompt`` of its own, to be answered as it stands: a text,
    or messages for the model's chat template. ``sampling`` overrides the job's, by SGLang's
    names."""

    doc_id: str
    text: str
    title: str = ""
    prompt: str | Sequence[Mapping[str, str]] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadDocument:
    """An input record that is no document; ``error`` is one sentence. Without a valid id of its
    own it goes by where it stands."""

    doc_id: str
    error: str


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, as token ids (``array("I")``, four bytes each, since many of them wait).
    ``sampling`` overrides the job's, by SGLang's names. Of requests with the same
    ``prefix``, which begin alike, an engine should prefill one before it takes the others."""

    doc_id: str
    input_ids: array[int]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    prefix: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.input_ids)

    def digest(self) -> str:
        """A hash of all that the answer depends on, under one configuration."""
        sampling = json.dumps(dict(self.sampling), sort_keys=True).encode()
        return hashlib.blake2b(sampling + self.input_ids.tobytes(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Result:
    """What an engine made of a request; times in seconds since the engine received it."""

    text: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    finish_reason: str
    ttft_s: float
    e2e_s: float
    kv: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a started engine says about itself. ``capacity_tokens``: that its KV memory holds in
    bf16. ``max_text_tokens``: of one prompt and its answer, where a policy holds more than that."""

    context_tokens: int
    capacity_tokens: int
    device: str
    versions: Mapping[str, str] = field(default_factory=dict)
    max_text_tokens: int | None = None

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer that the KV memory allows."""
        return self.max_text_tokens or self.capacity_tokens

    def max_prompt_tokens(self, max_new_tokens: int, margin: int = 8) -> int:
        """Longest prompt that leaves room for the answer; engines differ near the very end."""
        return max(0, min(self.context_tokens, self.longest_tokens) - max_new_tokens - margin)


@dataclass(frozen=True, slots=True)
class Row:
    """One document's line in the output table. ``truncated``: the model did not see all of it.
    ``n_cut_short``: answers on the way to the summary that max_new_tokens ended. ``death_log``: how
    each engine died that was running a document which failed."""

    doc_id: str
    status: str
    error: str | None = None
    summary: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    strategy: str | None = None
    n_chunks: int | None = None
    truncated: bool | None = None
    n_cut_short: int | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    engine: str | None = None
    death_log: Sequence[str] = ()
    kv: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """What became of one request of a document in several: see Step in task.py for where it
    stands."""

    doc_id: str
    level: int
    index: int
    begin: int
    end: int
    prompt_hash: str
    engine: str
    result: Result


class Engine(Protocol):
    """One engine, wherever it runs."""

    name: str

    async def start(self) -> EngineInfo:
        """Wait until the engine answers, also after it died. Raises EngineLost if it never will."""

    async def generate(self, request: Request) -> Result:
        """Run one request. Raises EngineLost or RequestFailed."""

    async def sample(self) -> dict[str, float]:
        """Telemetry now: plain numbers, units in the names. Raises EngineLost."""


class PromptBuilder(Protocol):
    def build(self, document: Document) -> Request:
        """Turn a document into a request. Whatever it raises makes that document invalid."""


class PartBuilder(PromptBuilder, Protocol):
    """Also for documents that are done in several requests."""

    def build_part(self, document: Document, part: Part, text: str, summary: str = "") -> Request:
        """A request for a piece of a document, or for the summaries of some. ``summary``: what the
        pieces before it came to."""

    def token_starts(self, text: str) -> Sequence[int]:
        """For each token of a text alone, the character where it begins."""


Source = Iterator[Document | BadDocument]
Sample = dict[str, Any]
