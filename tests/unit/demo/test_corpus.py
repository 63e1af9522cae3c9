"""The corpus is long, real, the same each time, and never half written."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from arkv_sglang.demo import corpus as demo_corpus
from arkv_sglang.demo.corpus import MAX_TOKENS, MIN_DOCUMENTS, MIN_TOKENS, build_corpus
from arkv_sglang.demo.model import ensure_model


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_corpus(tmp_path_factory.mktemp("corpus") / "new" / "corpus.parquet")


def test_documents_are_many_and_long(corpus: Path) -> None:
    documents = pq.read_table(corpus).to_pylist()
    tokenizer = Tokenizer.from_file(str(ensure_model() / "tokenizer.json"))
    lengths = [len(tokenizer.encode(document["text"]).ids) for document in documents]
    assert len(documents) >= MIN_DOCUMENTS
    assert min(lengths) >= MIN_TOKENS and max(lengths) <= MAX_TOKENS


def test_rows_are_complete(corpus: Path) -> None:
    table = pq.read_table(corpus)
    assert table.column_names == ["doc_id", "title", "text"]
    assert all(all(row.values()) for row in table.to_pylist())
    ids = table["doc_id"].to_pylist()
    assert ids == sorted(set(ids))
    assert {doc_id.split("-")[0] for doc_id in ids} == {"python", "readme"}


def test_same_bytes_again(corpus: Path, tmp_path: Path) -> None:
    again = build_corpus(tmp_path / "corpus.parquet")
    assert again.read_bytes() == corpus.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.parquet"]


def test_too_few_documents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_corpus, "README_PACKAGES", ("no-such-package",))
    with pytest.raises(RuntimeError, match="24 documents, got 14"):
        build_corpus(tmp_path / "corpus.parquet")
    assert not list(tmp_path.iterdir())
