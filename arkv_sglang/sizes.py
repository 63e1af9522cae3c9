"""How much memory a pool and its requests take, known from lengths alone."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from arkv_sglang.config import ArkvConfig
from arkv_sglang.core import ROW_UNITS, Geometry, Tier


@dataclass(frozen=True)
class PoolSize:
    """How one rank's KV bytes are cut up."""

    num_slots: int
    num_units: int

    @classmethod
    def from_tokens(cls, num_tokens: int, context_len: int, geometry: Geometry) -> PoolSize:
        """Units that fit in the bytes of ``num_tokens`` bf16 tokens once the tables are paid.

        A slot costs four bytes a layer, so there are enough that units run out first: every token
        in the tree has a unit in each layer at least, and decoded tokens of views have their own.
        """
        num_slots = max(2 * num_tokens, context_len) + num_tokens
        table_bytes = 4 * geometry.num_layers * (num_slots + 1)
        rest = num_tokens * geometry.token_bytes - table_bytes
        num_units = max(int(rest / _bytes_per_unit(geometry)), 0)
        return cls(num_slots, num_units - num_units % ROW_UNITS[Tier.ORIGINAL])

    def capacity_tokens(self, geometry: Geometry) -> int:
        """bf16 tokens that the arena holds."""
        return self.num_units // geometry.token_units


def _bytes_per_unit(geometry: Geometry) -> float:
    """A unit, its scales and free-list entries, and its line in the view lists if a view has it."""
    free_lists = sum(4 / units for units in ROW_UNITS.values())
    return geometry.unit_bytes + geometry.scale_bytes + free_lists + VIEW_LIST_BYTES_PER_ROW


# Row code, position, mean and variance of 4 bytes each, and a count of 2.
VIEW_LIST_BYTES_PER_ROW = 18


@dataclass(frozen=True)
class Sizes:
    """Of requests under one config, in an arena of ``num_units``.

    ``chunk_tokens``, everywhere: tokens of one prefill pass; None: prompts are prefilled whole.
    """

    config: ArkvConfig
    geometry: Geometry
    num_units: int

    def compresses(self, num_tokens: int, max_new_tokens: int) -> bool:
        """Whether a prompt of ``num_tokens`` gets a view.

        A fixed cap counts what may still be generated, since the cap does not grow with the text.
        """
        if self.config.when == "always":
            return True
        if num_tokens <= self.config.min_tokens:
            return False
        longest = num_tokens + (max_new_tokens if isinstance(self.config.budget, int) else 0)
        return longest * self.geometry.token_bytes > self.budget_bytes(num_tokens)

    def budget_bytes(self, num_tokens: int) -> int:
        """The request's byte budget; never less than its protected tokens in bf16."""
        token_bytes = self.geometry.token_bytes
        floor = min(self.config.num_protected, num_tokens) * token_bytes
        return max(self.config.budget_bytes(num_tokens, token_bytes), floor)

    def most_view_units(self, num_tokens: int) -> int:
        """Units that a view of a request of ``num_tokens`` takes at most. No device sync."""
        return self.budget_bytes(num_tokens) // self.geometry.unit_bytes

    def final_tokens(self, num_tokens: int, max_new_tokens: int) -> float:
        """bf16-token equivalents that a request needs at most once its prompt is behind it."""
        total = num_tokens + max_new_tokens
        if not self.compresses(num_tokens, max_new_tokens):
            return float(total)
        budget = self.budget_bytes(total) / self.geometry.token_bytes
        return min(float(total), budget * (1 + self.config.slack) + 1)

    def oversized(self, num_tokens: int, chunk_tokens: int | None) -> bool:
        """Whether the arena cannot hold a prompt of ``num_tokens`` in bf16 but may hold its view.

        Such a prompt is compressed after each chunk, and no other is.
        """
        too_large = (num_tokens + 1) * self.geometry.token_units >= self.num_units
        return too_large and chunk_tokens is not None and self.compresses(num_tokens, 0)

    def prefill_tokens(
        self, num_tokens: int, extend_tokens: int, chunk_tokens: int | None
    ) -> float:
        """bf16-token equivalents that a prompt takes at most until it is behind, of which
        ``extend_tokens`` are not in the tree."""
        if chunk_tokens is None or not self.oversized(num_tokens, chunk_tokens):
            return extend_tokens
        view = self.budget_bytes(num_tokens) / self.geometry.token_bytes
        return view + min(chunk_tokens, num_tokens)

    def fits(
        self,
        room_tokens: float,
        num_tokens: int,
        max_new_tokens: int,
        extend_tokens: int,
        chunk_tokens: int | None,
    ) -> bool:
        """Whether a request may be admitted into ``room_tokens`` (bf16-token equivalents).

        It needs its uncached prompt in bf16 first (of one that is larger than the arena, a chunk
        beside its view), and then what it is compressed to; one token is spared, as SGLang spares
        a page.
        """
        first = self.prefill_tokens(num_tokens, extend_tokens, chunk_tokens)
        final = self.final_tokens(num_tokens, max_new_tokens)
        return max(first, min(extend_tokens + max_new_tokens, final)) + 1 < room_tokens

    def max_text_tokens(self, chunk_tokens: int | None, most: int) -> int:
        """Of prompt and answer together that an empty arena serves, up to ``most``; an answer to a
        prompt that is too short to be compressed may have less."""
        room = self.num_units / self.geometry.token_units
        return bisect_left(
            range(1, most + 1),
            True,
            key=lambda n: not self.fits(room, n - 1, 1, n - 1, chunk_tokens),
        )
