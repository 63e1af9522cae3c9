"""What tasks make their samples of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from arkv_sglang.config import ConfigError
from arkv_sglang.eval.prompts import Prompts
from arkv_sglang.eval.texts import Text, distinct_words, pieces

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Material:
    """``model``: path or name, for a tokenizer in another process. ``gsm8k``, ``longbench``: the
    files that the user named."""

    prompts: Prompts
    texts: Sequence[Text]
    seed: int
    model: str = ""
    gsm8k: Path | None = None
    longbench: Sequence[Path] = field(default_factory=tuple)

    def rng(self, task: str, number: int | None = None) -> random.Random:
        """For sample ``number`` of a task, or what all of its samples share."""
        return random.Random(f"{self.seed} {task} {number}")

    def depth(self, task: str, number: int) -> float:
        """Where to hide something, in [0, 1): places far apart for numbers that follow each
        other."""
        return (self.rng(task).random() + number * _GOLDEN) % 1

    def haystack(self, rng: random.Random) -> list[str]:
        """Pieces of running text, more than a prompt has room for."""
        return pieces(self.texts, rng, self.prompts.length)

    @cached_property
    def words(self) -> list[str]:
        return distinct_words(self.texts)

    def pick_words(self, rng: random.Random, count: int) -> list[str]:
        """Different ones, at random. Raises ConfigError."""
        if count > len(self.words):
            raise ConfigError(
                f"the texts must have at least {count} different words of 4 to 10 letters, got "
                f"{len(self.words)}; name more with --text or ask for a smaller --length"
            )
        return rng.sample(self.words, count)
