"""Documents from Parquet, JSON Lines, or a folder of text and Markdown, read as a stream."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from arkv_sglang.batch.config import InputConfig, is_uri
from arkv_sglang.batch.types import BadDocument, Document, Source
from arkv_sglang.config import ConfigError

SUFFIXES = {
    "parquet": (".parquet",),
    "jsonl": (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst"),
    "text": (".txt", ".md"),
}
# A record: where it stands (for messages and for want of an id), and its fields or what is wrong.
Record = tuple[str, dict[str, Any] | str]


def open_documents(config: InputConfig) -> Source:
    """Check the input at once (ConfigError), then return an iterator that reads it lazily."""
    fs, root = _locate(config.path)
    paths = _list(fs, root, config.path)
    kind = config.format if config.format != "auto" else _guess(paths, config.path)
    paths = [path for path in paths if path.endswith(SUFFIXES[kind])] if len(paths) > 1 else paths
    if kind == "text":
        records: Iterator[Record] = _read_text(fs, root, paths)
        config = config.model_copy(update={"id_column": "doc_id", "text_column": "text"})
    elif kind == "jsonl":
        records = _chain(paths, lambda path: _read_jsonl(fs, path))
    else:
        columns = [config.text_column, *filter(None, (config.id_column, config.title_column))]
        for path in paths:
            _check_columns(fs, path, columns)
        records = _chain(paths, lambda path: _read_parquet(fs, path, columns))
    return itertools.islice(_documents(records, config), config.limit)


def _chain(paths: list[str], read: Callable[[str], Iterator[Record]]) -> Iterator[Record]:
    return itertools.chain.from_iterable(map(read, paths))


def _locate(path: str) -> tuple[pafs.FileSystem, str]:
    try:
        return pafs.FileSystem.from_uri(path if is_uri(path) else str(Path(path).resolve()))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"input.path must be a path or a URI, got {path!r} ({error}); correct it"
        ) from None


def _list(fs: pafs.FileSystem, root: str, given: str) -> list[str]:
    info = fs.get_file_info(root)
    if info.type == pafs.FileType.NotFound:
        raise ConfigError(
            f"input.path must exist, got {given!r}; a relative path is taken from the job's "
            "working directory, so give the whole path if the file does not travel with it"
        )
    if info.type == pafs.FileType.File:
        return [root]
    found = fs.get_file_info(pafs.FileSelector(root, recursive=True))
    known = tuple(itertools.chain.from_iterable(SUFFIXES.values()))
    paths = sorted(f.path for f in found if f.is_file and f.path.endswith(known))
    if not paths:
        raise ConfigError(
            f"input.path must hold documents, got {given!r} with no file that ends in "
            f"{', '.join(known)}; name another folder"
        )
    return paths


def _guess(paths: list[str], given: str) -> str:
    for kind, suffixes in SUFFIXES.items():
        if any(path.endswith(suffixes) for path in paths):
            return kind
    raise ConfigError(
        f"input.format must be given for a file of this name, got 'auto' for {given!r}; "
        f"set it to one of {', '.join(SUFFIXES)}"
    )


def _check_columns(fs: pafs.FileSystem, path: str, columns: list[str]) -> None:
    try:
        with fs.open_input_file(path) as file:
            names = pq.read_schema(file).names
    except pa.ArrowException as error:
        raise ConfigError(
            f"input.path must be readable as Parquet, got {path!r} ({error}); correct it"
        ) from None
    for column in columns:
        if column not in names:
            raise ConfigError(
                f"input columns must exist in the file, got {column!r} for {path!r}; "
                f"the file has {', '.join(names)}"
            )


def _read_parquet(fs: pafs.FileSystem, path: str, columns: list[str]) -> Iterator[Record]:
    name = PurePosixPath(path).name
    number = itertools.count(1)
    try:
        with fs.open_input_file(path) as file:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=64, columns=columns):
                # As bytes, so that one undecodable value does not spoil its whole batch.
                arrays = [_as_bytes(batch.column(c)).to_pylist() for c in columns]
                for values in zip(*arrays, strict=True):
                    fields = dict(zip(columns, values, strict=True))
                    yield f"{name}#{next(number)}", fields
    except (pa.ArrowException, OSError) as error:
        yield f"{name}#{next(number)}", f"the rest of {name} cannot be read ({error})"


def _as_bytes(array: pa.Array) -> pa.Array:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return pc.cast(array, pa.large_binary())
    return array


def _read_jsonl(fs: pafs.FileSystem, path: str) -> Iterator[Record]:
    name = PurePosixPath(path).name
    number = 0
    try:
        with fs.open_input_stream(path) as stream, io.BufferedReader(stream) as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"{name}#{number}", _parse(line)
    except OSError as error:
        yield f"{name}#{number + 1}", f"the rest of {name} cannot be read ({error})"


def _parse(line: bytes) -> dict[str, Any] | str:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON in UTF-8 ({error})"
    return fields if isinstance(fields, dict) else "the line is not a JSON object"


def _read_text(fs: pafs.FileSystem, root: str, paths: list[str]) -> Iterator[Record]:
    for path in paths:
        name = path.removeprefix(root).lstrip("/") or PurePosixPath(path).name
        try:
            with fs.open_input_stream(path, compression=None) as stream:
                text = stream.read()
        except OSError as error:
            yield name, f"the file cannot be read ({error})"
            continue
        yield name, {"doc_id": name, "text": text}


def _documents(records: Iterator[Record], config: InputConfig) -> Source:
    seen: set[str] = set()
    for place, record in records:
        try:
            document = _document(place, record, config)
        except ValueError as error:
            yield BadDocument(place, str(error))
            continue
        if document.doc_id in seen:
            # Its own id, so that doc_id stays a key of the output.
            yield BadDocument(place, f"doc_id {document.doc_id!r} was already used in this input")
            continue
        seen.add(document.doc_id)
        if document.text.strip():
            yield document
        else:
            yield BadDocument(document.doc_id, "the text is empty")


def _document(place: str, record: dict[str, Any] | str, config: InputConfig) -> Document:
    if isinstance(record, str):
        raise ValueError(record)
    text = _text(record.get(config.text_column), config.text_column)
    title = record.get(config.title_column) if config.title_column else None
    if config.id_column is None:
        doc_id = hashlib.sha256(text.encode()).hexdigest()[:16]
    else:
        doc_id = _id(record.get(config.id_column), config.id_column)
    return Document(doc_id, text, "" if title is None else _text(title, "title"))


def _text(value: Any, column: str) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{column} is not UTF-8 (byte {error.start})") from None
    if not isinstance(value, str):
        kind = "missing" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{column} must be text, got {kind}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{column} is not Unicode text (character {error.start})") from None
    return value


def _id(value: Any, column: str) -> str:
    doc_id = str(value) if isinstance(value, int) else _text(value, column)
    if not doc_id.strip():
        raise ValueError(f"{column} is empty")
    return doc_id
