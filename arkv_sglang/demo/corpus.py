"""A corpus of real documents that every machine with this environment already has.

    python -m arkv_sglang.demo.corpus PATH.parquet

Chapters of the Python manual (CPython's `pydoc_data.topics`) and the READMEs that packages carry in
their metadata, each of `MIN_TOKENS` to `MAX_TOKENS` tokens of the demo model.
"""

import argparse
import logging
import os
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from arkv_sglang.demo.model import ensure_model

MIN_TOKENS, MAX_TOKENS = 600, 6_000
MIN_DOCUMENTS = 24
NUM_TOPICS = 14
README_PACKAGES = (
    "attrs",
    "datasets",
    "einops",
    "huggingface_hub",
    "pillow",
    "ray",
    "rich",
    "sentencepiece",
    "sglang",
    "sympy",
    "tokenizers",
    "transformers",
)

logger = logging.getLogger(__name__)


class Document(NamedTuple):
    doc_id: str
    title: str
    text: str


def build_corpus(path: Path | str) -> Path:
    """Write the corpus (doc_id, title, text) to `path` in one step; return the absolute path."""
    path = Path(path).expanduser().resolve()
    documents = sorted(
        collect_documents(Tokenizer.from_file(str(ensure_model() / "tokenizer.json")))
    )
    if len(documents) < MIN_DOCUMENTS:
        raise RuntimeError(f"the corpus must have {MIN_DOCUMENTS} documents, got {len(documents)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    pq.write_table(pa.Table.from_pylist([doc._asdict() for doc in documents]), partial)
    partial.replace(path)
    logger.info("Wrote %d documents to %s", len(documents), path)
    return path


def collect_documents(tokenizer: Tokenizer) -> list[Document]:
    """The longest topics and all READMEs whose length is in range."""

    def num_tokens(doc: Document) -> int:
        return len(tokenizer.encode(doc.text).ids)

    def in_range(candidates: Iterator[Document]) -> list[Document]:
        return [doc for doc in candidates if MIN_TOKENS <= num_tokens(doc) <= MAX_TOKENS]

    longest_topics = sorted(in_range(_topics()), key=num_tokens)[-NUM_TOPICS:]
    return longest_topics + in_range(_readmes())


def _topics() -> Iterator[Document]:
    for name, text in topics.items():
        title = next(line for line in text.splitlines() if line.strip())
        yield Document(f"python-{name}", title.strip(), text.strip())


def _readmes() -> Iterator[Document]:
    for name in README_PACKAGES:
        try:
            package = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue
        text = str(package.json["description"]).strip()
        yield Document(f"readme-{name}", f"README of {package['Name']}", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the demo corpus.")
    parser.add_argument("path", help="the Parquet file to write")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    build_corpus(parser.parse_args().path)
