import gzip
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from arkv_sglang.batch.config import InputConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.inputs import COMPRESSIONS
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
        BadDocument("b", "text is not UTF-8 (byte 4)"),
        BadDocument("c", "the text is empty"),
        BadDocument("d", "text must be text, got missing"),
        BadDocument("corpus.parquet#5", "doc_id 'a' was already used in this input"),
    ]


FAR = pa.array([2**62, 1], pa.timestamp("us"))
FAR_DATE = pa.array([10**7, 1], pa.date32())
UNDECODABLE = pa.array([b"\xff", b"good"], pa.binary()).buffers()
LISTS = pa.ListArray.from_arrays(
    pa.array([0, 1, 2]), pa.Array.from_buffers(pa.string(), 2, UNDECODABLE)
)


@pytest.mark.parametrize("column", [FAR, FAR_DATE, LISTS], ids=["timestamp", "date", "list"])
def test_parquet_values_that_python_cannot_hold_cost_one_row_each(
    tmp_path: Path, column: pa.Array
) -> None:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"doc_id": ["a", "b"], "text": column}), path)
    assert [type(document) for document in read(path)] == [BadDocument, BadDocument]
    assert [document.doc_id for document in read(path)] == ["a", "b"]
    pq.write_table(pa.table({"doc_id": column, "text": ["A", "B"]}), path)
    assert [d.doc_id for d in read(path)] == ["corpus.parquet#1", "corpus.parquet#2"]
    assert read(path, id_column=None)[1].doc_id == "df7e70e5021544f4"
    ids = ["a", "b"]
    pq.write_table(pa.table({"doc_id": ids, "text": ["A", "B"], "title": column}), path)
    first, second = read(path, title_column="title")
    assert isinstance(first, BadDocument) and first.error.startswith("title must be text, got a ")
    assert isinstance(second, BadDocument) and second.doc_id == "b"


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.large_string(), pa.binary()])
def test_parquet_text_of_any_type(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "corpus.parquet"
    texts = pa.array(["grün", None], pa.string()).cast(kind)
    pq.write_table(pa.table({"doc_id": pa.array([2**64 - 1, 8], pa.uint64()), "text": texts}), path)
    assert read(path) == [
        Document(str(2**64 - 1), "grün"),
        BadDocument("8", "text must be text, got missing"),
    ]


def test_a_folder_of_parquet_parts(tmp_path: Path) -> None:
    for name in "ba":
        table = pa.table({"doc_id": [name], "text": [name * 3]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert read(tmp_path) == [Document("a", "aaa"), Document("b", "bbb")]


def test_a_broken_parquet_part_costs_one_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"doc_id": ["a"], "text": ["A"]}), tmp_path / "b.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    bad, good = read(tmp_path)
    assert isinstance(bad, BadDocument) and bad.doc_id == "a.parquet#1"
    assert bad.error.startswith("a.parquet cannot be read (ArrowInvalid: ")
    assert good == Document("a", "A")


def test_jsonl_with_lines_that_are_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    good = json.dumps({"doc_id": 7, "text": "grün"}).encode()
    lines = [good, b"{", b"", b"[1]", b'{"text": "no id"}', b'{"doc_id": "s", "text": "\\ud800"}']
    lines += [b'{"doc_id": true, "text": "yes"}', b'{"doc_id": "n", "text": 5}']
    path.write_bytes(b"\n".join(lines))
    documents = read(path)
    assert documents[0] == Document("7", "grün")
    places = [f"corpus.jsonl#{number}" for number in (2, 4, 5, 7)]
    assert [document.doc_id for document in documents[1:]] == [*places[:3], "s", places[3], "n"]
    errors = [bad.error for bad in documents[1:] if isinstance(bad, BadDocument)]
    assert "the line is not JSON" in errors[0]
    assert errors[1] == "the line is not a JSON object"
    assert errors[2] == "doc_id must be text, got missing"
    assert errors[3] == "text is not Unicode text (character 0)"
    assert errors[4:] == ["doc_id must be text, got a bool", "text must be text, got a int"]


def test_ids_are_a_key_of_the_output_stand_ins_included(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        good = json.dumps({"doc_id": name, "text": "t"})
        (tmp_path / name / "part.jsonl").write_text(f"{{bad\n{good}\n")
    taken = json.dumps({"doc_id": "z.jsonl#2", "text": "t"})
    (tmp_path / "z.jsonl").write_text(f"{taken}\n{{bad\n{taken}\n")
    documents = read(tmp_path)
    ids = [document.doc_id for document in documents]
    assert ids == [
        *("a/part.jsonl#1", "a"),
        *("b/part.jsonl#1", "b"),
        *("z.jsonl#2", "z.jsonl#2~2", "z.jsonl#3"),
    ]
    assert [document.doc_id for document in documents if isinstance(document, Document)] == [
        "a",
        "b",
        "z.jsonl#2",
    ]


def test_jsonl_of_every_compression(tmp_path: Path) -> None:
    for name, compression in COMPRESSIONS.items():
        with pa.CompressedOutputStream(str(tmp_path / f"c.jsonl{name}"), compression) as file:
            file.write(json.dumps({"doc_id": name, "text": "t"}).encode())
    assert {document.doc_id for document in read(tmp_path)} == {".gz", ".zst", ".bz2", ".lz4"}


def test_compressed_jsonl_and_one_cut_short(tmp_path: Path) -> None:
    lines = b"".join(b'{"doc_id": %d, "text": "t%d"}\n' % (n, n * n) for n in range(20_000))
    whole = gzip.compress(lines)
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(whole)
    assert len(read(path)) == 20_000
    shouting = tmp_path / "CORPUS.JSONL.GZ"
    shouting.write_bytes(whole)
    assert len(read(shouting)) == 20_000
    path.write_bytes(whole[: len(whole) // 2])
    last = read(path)[-1]
    assert isinstance(last, BadDocument) and "cannot be read" in last.error


def test_a_folder_of_text_files_keeps_paths_as_ids(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.md").write_text("# B")
    (tmp_path / "a.txt").write_bytes("\ufeffA".encode())
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "d.bin").write_bytes(b"no document")
    (tmp_path / "E.MD").write_text("E")
    (tmp_path / "f.markdown").write_text("F")
    assert read(tmp_path) == [
        Document("E.MD", "E"),
        Document("a.txt", "A"),
        BadDocument("c.txt", "text is not UTF-8 (byte 0)"),
        Document("f.markdown", "F"),
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
    assert later.doc_id == "b.txt"


def test_the_format_chooses_among_the_kinds_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.JSONL").write_text('{"doc_id": "b", "text": "B"}\n')
    assert read(tmp_path, format="text") == [Document("a.txt", "A")]
    assert read(tmp_path, format="jsonl") == [Document("b", "B")]


def test_the_name_of_a_link_says_the_kind(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text('{"doc_id": "b", "text": "B"}\n')
    (tmp_path / "corpus.jsonl").symlink_to("blob")
    assert read(tmp_path / "corpus.jsonl") == [Document("b", "B")]


def test_a_file_that_breaks_its_reader_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"doc_id": "{name}", "text": "t"}}\n')

    def parse(line: bytes) -> dict[str, Any]:
        if b'"a"' in line:
            raise MemoryError
        return {"doc_id": "b", "text": "t"}

    monkeypatch.setattr("arkv_sglang.batch.records._parse", parse)
    assert read(tmp_path) == [
        BadDocument("a.jsonl#1", "a.jsonl cannot be read (MemoryError)"),
        Document("b", "t"),
    ]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("missing.parquet", {}, "input.path must exist"),
        ("empty", {}, "input.path must hold documents"),
        ("corpus.data", {}, "input.path must name files that end in "),
        ("corpus.parquet", {"text_column": "body"}, "got 'body' .*the file has doc_id, text"),
        ("corpus.data", {"format": "parquet"}, "must be readable as Parquet"),
        ("footer.parquet", {}, "must be readable as Parquet, got .*thrift"),
        ("twice.parquet", {}, "must exist once in the file, got 'text' .* doc_id, text, text"),
        ("latin", {}, r"with names in UTF-8, got b'.*/latin/\\xff.txt' in "),
        ("mixed", {}, "must be given for files of several kinds, .* with jsonl and text; "),
        ("mixed", {"format": "parquet"}, r"no file that ends in \.parquet; "),
        ("one", {"format": "text"}, r"no file that ends in \.txt, \.md, .* \.pdf; "),
        ("corpus.parquet/x", {}, "input.path must"),
    ],
)
def test_wrong_input_is_refused_before_reading(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "corpus.data").write_text("x")
    (tmp_path / "footer.parquet").write_bytes(b"PAR1" + b"x" * 50 + b"\x14\0\0\0PAR1")
    twice = pa.Table.from_arrays([pa.array(["x"])] * 3, ["doc_id", "text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    (tmp_path / "latin").mkdir()
    Path(os.fsdecode(bytes(tmp_path / "latin") + b"/\xff.txt")).touch()
    for folder, names in (("mixed", ("a.txt", "b.jsonl")), ("one", ("b.jsonl",))):
        (tmp_path / folder).mkdir()
        for file in names:
            (tmp_path / folder / file).touch()
    pq.write_table(pa.table({"doc_id": ["a"], "text": ["A"]}), tmp_path / "corpus.parquet")
    with pytest.raises(ConfigError, match=message):
        open_documents(InputConfig(path=str(tmp_path / name), **settings))
