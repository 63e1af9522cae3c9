"""KV memory that documents will take under each policy, from lengths and the model's shape."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from arkv_sglang.config import ArkvConfig, ConfigError, load_config
from arkv_sglang.core import Geometry, Tier
from arkv_sglang.policy import shares
from arkv_sglang.sizes import PoolSize, Sizes

COMPARED_BUDGETS = (0.25, 0.125)
# Policies that take the same bytes at the same budget stand in one line.
COMPARED_POLICIES = {"original": "original", "arkv": "quantized, arkv"}
# Of a prefill pass where the configuration leaves it to SGLang. It matters only to documents that
# are larger than the memory.
CHUNK_TOKENS = 8192
MOST_TOKENS = 1 << 29


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """One line: bytes of a document at its end, rows of the longest by tier (shares of one), and
    how many run at once: all as long as the median one, and the longest, as they are handed out."""

    policy: str
    budget: float | int | None
    is_configured: bool
    median_bytes: int
    longest_bytes: int
    rows_original_ratio: float
    rows_quantized_ratio: float
    rows_evicted_ratio: float
    at_once_median: int | None = None
    at_once_longest: int | None = None


@dataclass(frozen=True, slots=True)
class KVPlanner:
    """``memory_tokens``: KV memory of one engine as tokens of bf16, tables included, which is what
    max_total_tokens means; None if it is not known."""

    geometry: Geometry
    context_tokens: int
    max_new_tokens: int
    engine: Mapping[str, Any]
    memory_tokens: int | None = None

    def plan(self, lengths: Sequence[int]) -> list[PolicyPlan]:
        """For prompts of ``lengths`` tokens, at least one. Raises ConfigError."""
        longest_first = sorted(lengths, reverse=True)
        plans = [self._line("none", None, longest_first)]
        for budget in self._budgets():
            for policy, label in self._policies():
                config = self._variant(policy, budget)
                if config is not None:
                    plans.append(self._line(label, config, longest_first))
        return plans

    @property
    def configured(self) -> ArkvConfig | None:
        return load_config(
            self.engine.get("kv_policy", "none"), self.engine.get("kv_policy_config")
        )

    def capacity_tokens(self, is_compressing: bool) -> int | None:
        """bf16 tokens that the rows' memory holds: a policy's tables are paid from the same."""
        if self.memory_tokens is None or not is_compressing:
            return self.memory_tokens
        return self._arena_tokens(self.memory_tokens)

    @property
    def max_text_tokens(self) -> int | None:
        """Of one prompt and its answer under the configured policy, the context aside."""
        config, memory = self.configured, self.memory_tokens
        if memory is None or config is None:
            return memory
        return self._sizes(config, self._arena_tokens(memory)).max_text_tokens(
            self._chunk_tokens, MOST_TOKENS
        )

    def memory_of(self, capacity_tokens: int, is_compressing: bool) -> int:
        """The memory of an engine that says it holds ``capacity_tokens``."""
        if not is_compressing:
            return capacity_tokens
        return bisect_left(range(MOST_TOKENS), capacity_tokens, key=self._arena_tokens)

    def _arena_tokens(self, memory_tokens: int) -> int:
        size = PoolSize.from_tokens(memory_tokens, self.context_tokens, self.geometry)
        return size.capacity_tokens(self.geometry)

    def _budgets(self) -> list[float | int]:
        own = (self.configured or ArkvConfig()).budget
        return list(dict.fromkeys((own, *COMPARED_BUDGETS)))

    def _policies(self) -> Iterator[tuple[str, str]]:
        yield from COMPARED_POLICIES.items()
        if self.engine.get("kv_policy") == "arkv-paper":
            yield "arkv-paper", "arkv-paper, at most"

    def _variant(self, policy: str, budget: float | int) -> ArkvConfig | None:
        """The configured settings under another policy or budget; None where they do not allow
        it."""
        base = self.configured or ArkvConfig()
        settings = {name: getattr(base, name) for name in ("min_tokens", "when", "sinks", "window")}
        try:
            return load_config(policy, {**settings, "slack": base.slack, "budget": budget})
        except ConfigError:
            return None

    def _line(
        self, label: str, config: ArkvConfig | None, longest_first: Sequence[int]
    ) -> PolicyPlan:
        median, longest = longest_first[len(longest_first) // 2], longest_first[0]
        original, quantized, total = self._rows(config, longest)
        own = self.configured
        return PolicyPlan(
            policy=label,
            budget=None if config is None else config.budget,
            is_configured=self.engine.get("kv_policy", "none") in label.split(", ")
            and (config is None or own is None or config.budget == own.budget),
            median_bytes=self._bytes(config, median),
            longest_bytes=self._bytes(config, longest),
            rows_original_ratio=original / total,
            rows_quantized_ratio=quantized / total,
            rows_evicted_ratio=(total - original - quantized) / total,
            at_once_median=self._at_once(config, itertools.repeat(median)),
            at_once_longest=self._at_once(config, longest_first),
        )

    def _rows(self, config: ArkvConfig | None, prompt_tokens: int) -> tuple[int, int, int]:
        """Rows of one layer once the answer is as long as it may be: bf16, fp8, and how many there
        would be without a policy."""
        total = prompt_tokens + self.max_new_tokens
        if config is None:
            return total, 0, total
        sizes = Sizes(config, self.geometry, num_units=0)
        if not sizes.compresses(prompt_tokens, self.max_new_tokens):
            return total, 0, total
        if config.policy == "arkv-paper":
            # Which of its rows stay bf16 hangs on the text, so as if all did.
            config = replace(config, policy="original")
        split = shares(
            config,
            self.geometry,
            num_rows=total,
            num_protected=min(config.num_protected, total),
            budget_bytes=sizes.budget_bytes(total),
        )
        return int(split.num_original), int(split.num_quantized), total

    def _bytes(self, config: ArkvConfig | None, prompt_tokens: int) -> int:
        original, quantized, _ = self._rows(config, prompt_tokens)
        row_bytes = self.geometry.row_bytes
        return self.geometry.num_layers * (
            original * row_bytes(Tier.ORIGINAL) + quantized * row_bytes(Tier.QUANTIZED)
        )

    def _at_once(self, config: ArkvConfig | None, lengths: Iterable[int]) -> int | None:
        """How many of ``lengths`` are admitted, in this order, before one must wait.

        As in the engine, a prompt is bf16 until it is behind and its budget from then on, with its
        whole answer reckoned in. Prefixes that documents share make room for more.
        """
        capacity = self.capacity_tokens(config is not None)
        if capacity is None:
            return None
        count, used = 0, 0.0
        for prompt_tokens in lengths:
            prefill, final = self._needs(config, prompt_tokens, capacity)
            if used + max(prefill, final) + 1 > capacity:
                break
            count, used = count + 1, used + final
        return count

    def _needs(
        self, config: ArkvConfig | None, prompt_tokens: int, capacity: int
    ) -> tuple[float, float]:
        if config is None:
            return prompt_tokens, prompt_tokens + self.max_new_tokens
        sizes = self._sizes(config, capacity)
        return (
            sizes.prefill_tokens(prompt_tokens, prompt_tokens, self._chunk_tokens),
            sizes.final_tokens(prompt_tokens, self.max_new_tokens),
        )

    def _sizes(self, config: ArkvConfig, capacity: int) -> Sizes:
        return Sizes(config, self.geometry, capacity * self.geometry.token_units)

    @property
    def _chunk_tokens(self) -> int | None:
        chunk: int = self.engine.get("chunked_prefill_size") or CHUNK_TOKENS
        return chunk if chunk > 0 else None
