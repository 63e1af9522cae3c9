"""Prompts of exact lengths, cut from the demo corpus."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from transformers import AutoTokenizer

from arkv_sglang.demo.corpus import build_corpus

INSTRUCTION = "Summarize this document in three sentences.\n\n"


def chat_prompts(model: str, lengths: list[int], scratch: Path) -> list[list[int]]:
    """One chat per length: the instruction, and so much of the corpus that it has that many tokens.

    Each takes up where the one before ended, so no two share more than the instruction. Raises
    SystemExit when the corpus has not that many tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = pq.read_table(build_corpus(scratch / "corpus.parquet")).column("text").to_pylist()
    message = [{"role": "user", "content": f"{INSTRUCTION}@@@"}]
    chat = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    before, after = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in chat.split("@@@")
    )
    frame = len(before) + len(after)
    corpus = [token for text in texts for token in tokenizer(text)["input_ids"]]
    if sum(lengths) - frame * len(lengths) > len(corpus):
        raise SystemExit(
            f"the documents must have at most the corpus's {len(corpus)} tokens in all, got "
            f"{sum(lengths)}; ask for fewer or shorter ones"
        )
    prompts, start = [], 0
    for length in lengths:
        end = start + length - frame
        prompts.append([*before, *corpus[start:end], *after])
        start = end
    return prompts
