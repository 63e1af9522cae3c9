"""Which files an input is made of, under which names."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from arkv_sglang.batch import inputs
from arkv_sglang.batch.config import InputConfig
from arkv_sglang.batch.documents import open_documents
from arkv_sglang.batch.inputs import find_files
from arkv_sglang.config import ConfigError

TREE = ("a.txt", "b.md", "b1.txt", "b[1].txt", "c.log", "q?.txt", "x/d.txt", "x/y/e.txt", "z/d.txt")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    return tmp_path


def names(*paths: object, **settings: Any) -> list[str]:
    found = find_files(InputConfig(path=[*map(str, paths)], **settings))
    return [file.name for file in found.files]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["a.txt", "b1.txt", "b[1].txt", "q?.txt"]),
        ("?.*", ["a.txt", "b.md"]),
        ("[ab].*", ["a.txt", "b.md"]),
        ("*/d.txt", ["x/d.txt", "z/d.txt"]),
        ("x*", ["x/d.txt", "x/y/e.txt"]),
        ("x/**/e.txt", ["**/e.txt"]),
        ("**/?.txt", ["a.txt", "x/d.txt", "x/y/e.txt", "z/d.txt"]),
        ("**", [name for name in TREE if name != "c.log"]),
    ],
)
def test_a_pattern_names_files_from_where_it_begins(
    tree: Path, pattern: str, found: list[str]
) -> None:
    found = ["y/e.txt" if name == "**/e.txt" else name for name in found]
    assert names(tree / pattern) == found
    if "?" not in pattern and "[" not in pattern:
        assert names(f"file://{tree}/{pattern}") == found


def test_a_path_that_exists_is_no_pattern(tree: Path) -> None:
    assert names(tree / "b[1].txt") == ["b[1].txt"]
    assert names(tree / "q?.txt") == ["q?.txt"]
    (tree / "b[1].txt").unlink()
    assert names(tree / "b[1].txt") == ["b1.txt"]


def test_files_that_are_named_with_their_format_need_no_suffix(tree: Path) -> None:
    assert names(tree / "*.log", format="text") == ["c.log"]
    assert "c.log" not in names(tree, format="text")
    assert sorted(names(tree, tree / "c.log", format="text")) == sorted(TREE)


def test_a_list_is_read_in_its_order_and_each_file_once(tree: Path) -> None:
    assert names(tree / "x", tree / "a.txt") == ["d.txt", "y/e.txt", "a.txt"]
    assert names(tree / "a.txt", f"file://{tree}/*.txt", tree / "a.txt") == names(tree / "*.txt")


def test_files_of_one_name_are_refused_since_it_is_their_id(tree: Path) -> None:
    sentence = rf"differ, .* got 'd.txt' for '{tree}/x/d.txt' and '{tree}/z/d.txt'; name the folder"
    with pytest.raises(ConfigError, match=sentence):
        names(tree / "x", tree / "z")
    for folder in "xz":
        (tree / folder / "part.jsonl").touch()  # records have ids of their own
    assert names(tree / "x", tree / "z", format="jsonl") == ["part.jsonl", "part.jsonl"]


@pytest.mark.parametrize("pattern", ["*.pdf", "no/*.txt", "*/*/*/e.txt"])
def test_a_pattern_without_files_is_refused(tree: Path, pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"^input\.path must exist, got '.*\*"):
        names(tree / pattern)


def test_a_pattern_that_is_none_is_refused(tree: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^input\.path must be .* got '.*/a\*\*' \(.*\); correct"
    ):
        names(tree / "a**")


def test_patterns_on_a_file_system_without_a_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """As S3 is: its paths begin with the bucket."""
    buckets = pafs._MockFileSystem()
    for name in ("bucket/a/1.txt", "bucket/b/2.txt", "bucket/b/c/3.txt", "other/4.txt"):
        buckets.create_dir(name.rpartition("/")[0])
        buckets.open_output_stream(name).close()
    monkeypatch.setattr(inputs, "_locate", lambda given: (buckets, given.removeprefix("s3://")))
    assert names("s3://bucket/*/*.txt") == ["a/1.txt", "b/2.txt"]
    assert names("s3://bucket/b*") == ["b/2.txt", "b/c/3.txt"]
    assert names("s3://bucket") == ["a/1.txt", "b/2.txt", "b/c/3.txt"]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError("no route"), r"readable, got 's3://bucket' \(.*no route.*\); check its name, the"),
        (pa.ArrowInvalid("no such scheme"), r"a path or a URI, got .*scheme.*; correct it$"),
    ],
)
def test_a_uri_that_is_out_of_reach_is_told_from_one_that_is_none(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    def fail(uri: str) -> None:
        raise error

    monkeypatch.setattr(inputs.pafs, "FileSystem", SimpleNamespace(from_uri=fail))
    with pytest.raises(ConfigError, match=sentence):
        names("s3://bucket")


def test_files_that_are_no_documents_are_counted_by_suffix(tree: Path) -> None:
    assert ignored(tree) == "ignored: 1 file (.log)"
    assert ignored(tree / "x") is None
    (tree / ".git").mkdir()
    for name in ("f.DOCX", "z/g.docx", "_SUCCESS", ".hidden.txt", ".git/d.txt", ".git/e"):
        (tree / name).touch()
    counted = "ignored: 7 files (3 hidden, 2 .docx, 1 without suffix, 1 .log)"
    assert ignored(tree) == counted
    assert ignored(tree / "*.txt") == "ignored: 1 file (hidden)"


def ignored(path: Path) -> str | None:
    said: list[str] = []
    open_documents(InputConfig(path=[str(path)]), say=said.append)
    return said[0] if said else None


def test_hidden_files_are_documents_only_when_they_are_named(tree: Path) -> None:
    visible = names(tree)
    for name in (".h.txt", ".git/d.txt", "x/.cache/d.txt"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).touch()
    assert names(tree) == visible
    assert ".h.txt" not in names(tree / "*.txt")
    assert names(tree / "**/?.txt") == ["a.txt", "x/d.txt", "x/y/e.txt", "z/d.txt"]
    assert names(tree / ".h.txt") == [".h.txt"]
    assert names(tree / ".git") == ["d.txt"]
    assert names(tree / ".*.txt") == [".h.txt"]


@pytest.mark.parametrize("name", ["a.docx", "*.docx"])
def test_a_kind_that_is_not_read_is_not_to_be_named_another_one(tree: Path, name: str) -> None:
    (tree / "a.docx").touch()
    sentence = r"must name files that end in \.parquet, .*docx'; convert them, or set input.format"
    with pytest.raises(ConfigError, match=sentence):
        names(tree / name)
