"""Prompts as token ids, as long as they are asked to be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from arkv_sglang.config import ConfigError

_MARK = "@@@"


class Prompts:
    """With a Hugging Face tokenizer, or anything that behaves like one.

    length: of a prompt in tokens, at most, the chat template's included.
    """

    def __init__(self, tokenizer: Any, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length
        self._begin: list[int] = []
        self._before = self._after = ""
        self.has_chat = bool(getattr(tokenizer, "chat_template", None))
        if self.has_chat:
            chat = tokenizer.apply_chat_template(
                [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
            )
            self._before, self._after = chat.split(_MARK)
        else:
            self._begin = list(tokenizer("")["input_ids"])

    def tokens(self, text: str) -> list[int]:
        """Of a piece of text, without special tokens around it."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def plain(self, text: str) -> list[int]:
        """Text that the model is to go on with, in no chat."""
        return list(self.tokenizer(text, verbose=False)["input_ids"])

    def head(self, text: str) -> list[int]:
        """A chat up to somewhere in what the user says. With `tail` behind it, it is whole."""
        return self._begin + self.tokens(self._before + text)

    def tail(self, text: str, prefix: str = "") -> list[int]:
        """The rest of what the user says, and how the answer begins."""
        space = "" if self.has_chat or not prefix else " "
        return self.tokens(f"{text}{self._after}{space}{prefix}")

    def chat(self, text: str, prefix: str = "") -> list[int]:
        return self.head(text) + self.tail("", prefix)

    def largest(self, build: Callable[[int], list[int]], most: int) -> int:
        """The largest n up to ``most`` for which ``build(n)`` is within the length. Raises
        ConfigError when not even ``build(0)`` is."""
        found = bisect_right(range(most + 1), self.length, key=lambda n: len(build(n))) - 1
        # One more piece can make a text a token shorter, so that the search ends too high.
        while found >= 0 and len(build(found)) > self.length:
            found -= 1
        if found < 0:
            raise ConfigError(
                f"--length must be at least {len(build(0))} for a task that was asked for, "
                f"got {self.length}"
            )
        return found

    def without_middle(self, ids: list[int], length: int | None = None) -> list[int]:
        """Cut in the middle to ``length`` (of a prompt, if not given), as LongBench does."""
        kept = self.length if length is None else length
        if len(ids) <= kept:
            return ids
        return ids[: kept // 2] + ids[kept // 2 - kept :]
