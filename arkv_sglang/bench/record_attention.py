"""Where the attention of a prompt's last queries falls, over real prompts of the demo model.

    python -m arkv_sglang.bench.record_attention docs/results/attention_profile.json

Each prompt is an instruction, a document of the demo corpus and a question, as a chat. Recorded is
what `Controller.finish_prompt` gives the tree: the attention of the last 32 queries to each token,
averaged over queries, heads and layers. It sums to 1 over a prompt, and is added up in the buckets
of `profile.PARTS`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from arkv_sglang.bench.profile import WINDOW, Profile, bucketed
from arkv_sglang.demo.corpus import build_corpus
from arkv_sglang.demo.model import MODEL_NAME, ensure_model

INSTRUCTION = """You answer questions about one document for people who have not read it. Rules:
- Use only what the document says. If it does not say, answer "The document does not say."
- Answer in at most three sentences of plain English, without lists, headings or markup.
- Name the function, option or section that the answer comes from, spelled as in the document.
- Do not repeat the question, do not greet, and do not comment on the document's quality.
- Copy numbers, versions and file names exactly; never round or translate them.

Document:

"""
QUESTIONS = (
    "Question: In a few words, what is this document about, who is it written for, and what should "
    "a reader be able to do after having read the whole of it?",
    "Question: Which mistakes does the document warn its readers of, and what does it tell them to "
    "do instead? Take the first one that it mentions and explain it.",
    "Question: Give one concrete example from the second half of the document, and explain in your "
    "own words what it shows and why the authors may have chosen it.",
)
MAX_DOCUMENT_TOKENS = 4_000
CHUNK_TOKENS = 512


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m arkv_sglang.bench.record_attention")
    parser.add_argument("output", type=Path, help="JSON file")
    parser.add_argument("--documents", type=int, default=12)
    options = parser.parse_args()
    path = str(ensure_model())
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with tempfile.TemporaryDirectory() as folder:
        table = pq.read_table(build_corpus(Path(folder) / "corpus.parquet"))
    rows = table.to_pylist()
    rows = rows[:: max(len(rows) // options.documents, 1)][: options.documents]
    profiles = [found for row in rows for found in record(model, tokenizer, row)]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    records = ",\n    ".join(json.dumps(profile.as_record()) for profile in profiles)
    options.output.write_text(
        f'{{\n  "model": "{MODEL_NAME}",\n  "window": {WINDOW},\n'
        f'  "profiles": [\n    {records}\n  ]\n}}\n'
    )


@torch.inference_mode()
def record(model: Any, tokenizer: Any, document: dict[str, str]) -> Iterator[Profile]:
    """One profile per question; the document is prefilled once."""
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": f"{INSTRUCTION}@@@\n\n###"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    before, between, after = _split(chat, "@@@", "###")

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    instruction, body = ids(before), ids(document["text"])[:MAX_DOCUMENT_TOKENS]
    shared = [*instruction, *body]
    cache = DynamicCache(config=model.config)
    _prefill(model, shared, cache)
    for question in QUESTIONS:
        tail = ids(f"{between}{question}{after}")
        _prefill(model, tail[:-WINDOW], cache)
        attention = _window_attention(model, tail[-WINDOW:], cache)
        lengths = (len(instruction), len(body), len(tail))
        yield Profile(document["doc_id"], lengths, bucketed(attention, lengths))
        cache.crop(-len(tail))


def _split(text: str, *marks: str) -> list[str]:
    parts = []
    for mark in marks:
        part, _, text = text.partition(mark)
        parts.append(part)
    return [*parts, text]


def _prefill(model: Any, ids: list[int], cache: DynamicCache) -> None:
    for chunk in torch.tensor(ids).split(CHUNK_TOKENS):
        model.model(input_ids=chunk[None], past_key_values=cache, use_cache=True)


def _window_attention(model: Any, ids: list[int], cache: DynamicCache) -> torch.Tensor:
    """fp32 [T]: mean over the queries ``ids``, heads and layers."""
    found = model.model(
        input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True, output_attentions=True
    )
    return torch.stack([layer[0].mean((0, 1)) for layer in found.attentions]).mean(0)


if __name__ == "__main__":
    main()
