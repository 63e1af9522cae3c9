"""Prompts of exact lengths, cut from the demo corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from transformers import AutoTokenizer

from arkv_sglang.demo.corpus import build_corpus

INSTRUCTION = "Summarize this document in three sentences.\n\n"


def chat_prompts(model: str, lengths: Sequence[int], scratch: Path) -> list[list[int]]:
    """One chat per length: the instruction, and so much of the corpus that it has that many tokens.

    Each takes up where the one before ended, so no two share more than the instruction. Raises
    SystemExit when the corpus has not that many tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    before, after = _frame(tokenizer, f"{INSTRUCTION}@@@")
    frame = len(before) + len(after)
    texts = _texts(tokenizer, [length - frame for length in lengths], scratch)
    return [[*before, *text, *after] for text in texts]


def question_prompts(
    model: str, lengths: Sequence[int], questions: Sequence[str], scratch: Path
) -> list[list[list[int]]]:
    """For each length a text of so many tokens, and for each text a chat per question, which stands
    behind the text. Raises SystemExit as `chat_prompts` does."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    frames = [_frame(tokenizer, f"Read this.\n\n@@@\n\n{question}") for question in questions]
    return [
        [[*before, *text, *after] for before, after in frames]
        for text in _texts(tokenizer, lengths, scratch)
    ]


def _frame(tokenizer: Any, message: str) -> tuple[list[int], list[int]]:
    """The token ids of a chat before and after the ``@@@`` in it."""
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], tokenize=False, add_generation_prompt=True
    )
    before, after = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in chat.split("@@@")
    )
    return before, after


def _texts(tokenizer: Any, lengths: Sequence[int], scratch: Path) -> Iterator[list[int]]:
    texts = pq.read_table(build_corpus(scratch / "corpus.parquet")).column("text").to_pylist()
    corpus = [token for text in texts for token in tokenizer(text)["input_ids"]]
    if sum(lengths) > len(corpus):
        raise SystemExit(
            f"the documents must have at most the corpus's {len(corpus)} tokens in all, got "
            f"{sum(lengths)}; ask for fewer or shorter ones"
        )
    start = 0
    for length in lengths:
        yield corpus[start : start + length]
        start += length
