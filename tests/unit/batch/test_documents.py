import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.config import InputConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.types import BadDocument, Document
from arkv_sglang.config import ConfigError


def read(path: Path, **settings: Any) -> list[Document | BadDocument]:
    return list(open_documents(InputConfig(path=str(path), **settings)))


def test_parquet_with_titles(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"doc_id": ["a", "b"], "text": ["A", "B"], "title": ["x", None]}), path)
    assert read(path, title_column="title") == [Document("a", "A", "x"), Document("b", "B", "")]
    assert read(path, limit=1) == [Document("a", "A")]


def test_parquet_bad_rows_are_told_apart_from_good_ones(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    texts = pa.array([b"good", b"bad \xff", b" ", None, b"again"], pa.binary())
    broken_utf8 = pa.Array.from_buffers(pa.string(), 5, texts.buffers())
    ids = ["a", "b", "c", "d", "a"]
    pq.write_table(pa.table({"doc_id": ids, "text": broken_utf8}), path)
    assert read(path) == [
        Document("a", "good"),
        BadDocument("corpus.parquet#2", "text is not UTF-8 (byte 4)"),
        BadDocument("c", "the text is empty"),
        BadDocument("corpus.parquet#4", "text must be text, got missing"),
        BadDocument("corpus.parquet#5", "doc_id 'a' was already used in this input"),
    ]


def test_a_folder_of_parquet_parts(tmp_path: Path) -> None:
    for name in "ba":
        table = pa.table({"doc_id": [name], "text": [name * 3]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert read(tmp_path) == [Document("a", "aaa"), Document("b", "bbb")]


def test_jsonl_with_lines_that_are_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    good = json.dumps({"doc_id": 7, "text": "grün"}).encode()
    lines = [good, b"{", b"", b"[1]", b'{"text": "no id"}', b'{"doc_id": "s", "text": "\\ud800"}']
    path.write_bytes(b"\n".join(lines))
    documents = read(path)
    assert documents[0] == Document("7", "grün")
    assert [document.doc_id for document in documents[1:]] == [
        f"corpus.jsonl#{number}" for number in (2, 4, 5, 6)
    ]
    errors = [bad.error for bad in documents[1:] if isinstance(bad, BadDocument)]
    assert "the line is not JSON" in errors[0]
    assert errors[1] == "the line is not a JSON object"
    assert errors[2] == "doc_id must be text, got missing"
    assert errors[3] == "text is not Unicode text (character 0)"


def test_compressed_jsonl_and_one_cut_short(tmp_path: Path) -> None:
    lines = b"".join(b'{"doc_id": %d, "text": "t%d"}\n' % (n, n * n) for n in range(20_000))
    whole = gzip.compress(lines)
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(whole)
    assert len(read(path)) == 20_000
    path.write_bytes(whole[: len(whole) // 2])
    last = read(path)[-1]
    assert isinstance(last, BadDocument) and "cannot be read" in last.error


def test_a_folder_of_text_files_keeps_paths_as_ids(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.md").write_text("# B")
    (tmp_path / "a.txt").write_bytes("\ufeffA".encode())
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "d.bin").write_bytes(b"no document")
    assert read(tmp_path) == [
        Document("a.txt", "A"),
        BadDocument("c.txt", "text is not UTF-8 (byte 0)"),
        Document("sub/b.md", "# B"),
    ]
    assert read(tmp_path / "sub/b.md") == [Document("b.md", "# B")]


def test_without_an_id_column_the_text_names_the_document(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "same"}\n{"text": "other"}\n{"text": "same"}\n')
    first, second, third = read(path, id_column=None)
    assert len({first.doc_id, second.doc_id}) == 2
    assert third == BadDocument(
        "corpus.jsonl#3", f"doc_id {first.doc_id!r} was already used in this input"
    )


def test_documents_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.txt").write_text("B")
    documents = open_documents(InputConfig(path=str(tmp_path)))
    assert next(documents) == Document("a.txt", "A")
    (tmp_path / "b.txt").unlink()
    later = next(documents)
    assert isinstance(later, BadDocument) and "cannot be read" in later.error


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("missing.parquet", {}, "input.path must exist"),
        ("empty", {}, "input.path must hold documents"),
        ("corpus.data", {}, "input.format must be given"),
        ("corpus.parquet", {"text_column": "body"}, "got 'body' .*the file has doc_id, text"),
        ("corpus.data", {"format": "parquet"}, "must be readable as Parquet"),
    ],
)
def test_wrong_input_is_refused_before_reading(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "corpus.data").write_text("x")
    pq.write_table(pa.table({"doc_id": ["a"], "text": ["A"]}), tmp_path / "corpus.parquet")
    with pytest.raises(ConfigError, match=message):
        open_documents(InputConfig(path=str(tmp_path / name), **settings))
