"""The nouns of an evaluation: a sample to be answered, what an engine left of it, and a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arkv_sglang.eval.material import Material


@dataclass(frozen=True)
class Sample:
    """One prompt, in the model's tokens, and what is expected of it.

    before: prompts that are served first, one after the other, for what they leave in the cache.
    forced: a continuation that the model is made to follow; its distributions are compared.
    about: how the sample was made (form and place of a needle), plain data.
    """

    task: str
    number: int
    prompt: list[int]
    new_tokens: int
    answers: tuple[str, ...] = ()
    before: tuple[list[int], ...] = ()
    forced: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Of the prompt and the longest answer to it."""
        return len(self.prompt) + self.new_tokens


@dataclass(frozen=True)
class Outcome:
    """What was measured of one sample under one arm.

    kv: the figures of ``meta_info["arkv"]``, none from stock. kv_bytes: at the end of the answer,
    and kv_bf16_bytes what the same rows are in bf16. wall_s: of the last request alone. measured:
    what only the engine can tell, such as KL. reference: the distributions that the other arms are
    compared with, from stock.
    """

    output: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    finish_reason: str
    kv: Mapping[str, int]
    kv_bytes: int
    kv_bf16_bytes: int
    wall_s: float
    measured: Mapping[str, float] = field(default_factory=dict)
    reference: bytes | None = None


Score = Callable[[Sample, Outcome, Outcome], dict[str, float]]
"""``score(sample, outcome, full_kv)``: figures by name, the first of them the score, in [0, 1];
``full_kv`` is the outcome of the same sample with full KV."""


@dataclass(frozen=True)
class Task:
    """``make(material, count)`` yields ``count`` samples, fewer where a file has fewer; raises
    ConfigError. Sample n is the same however many are asked for.

    about: a line for people. needs: an option that must be given, if there is one.
    """

    name: str
    about: str
    make: Callable[[Material, int], Iterator[Sample]]
    score: Score
    needs: str | None = None
