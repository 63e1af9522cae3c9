"""Documents from Parquet, JSON Lines, or a folder of text and Markdown, read as a stream."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from arkv_sglang.batch.config import InputConfig
from arkv_sglang.batch.inputs import check_columns, find_files
from arkv_sglang.batch.types import BadDocument, Document, Source, describe

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
# A record: where it stands (for want of an id), and its fields or what is wrong with it.
Record = tuple[str, dict[str, Any] | str]
Numbered = Iterator[tuple[int, dict[str, Any] | str]]


def open_documents(config: InputConfig) -> Source:
    """Check the input at once (ConfigError), then return an iterator that reads it lazily."""
    fs, root, kind, paths = find_files(config)
    if kind == "text":
        records = _text_records(fs, root, paths)
        config = config.model_copy(update={"id_column": "doc_id", "text_column": "text"})
    elif kind == "jsonl":
        records = _records(root, paths, partial(_read_jsonl, fs))
    else:
        columns = [config.text_column, *filter(None, (config.id_column, config.title_column))]
        check_columns(fs, paths, columns)
        records = _records(root, paths, partial(_read_parquet, fs, columns))
    return itertools.islice(_documents(records, config), config.limit)


# From files to records


def _records(root: str, paths: list[str], read: Callable[[str], Numbered]) -> Iterator[Record]:
    for path in paths:
        name = _relative(path, root)
        number = 0
        try:
            for number, fields in read(path):
                yield f"{name}#{number}", fields
        except Exception as error:
            yield f"{name}#{number + 1}", f"the rest of {name} cannot be read ({describe(error)})"


def _text_records(fs: pafs.FileSystem, root: str, paths: list[str]) -> Iterator[Record]:
    for path in paths:
        name = _relative(path, root)
        try:
            with fs.open_input_stream(path, compression=None) as stream:
                text = stream.read()
        except Exception as error:
            yield name, f"the file cannot be read ({describe(error)})"
            continue
        yield name, {"doc_id": name, "text": text}


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/") or PurePosixPath(path).name


def _read_parquet(fs: pafs.FileSystem, columns: list[str], path: str) -> Numbered:
    number = itertools.count(1)
    with fs.open_input_file(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=64, columns=columns):
            for scalars in zip(*map(batch.column, columns), strict=True):
                yield next(number), dict(zip(columns, map(_value, scalars), strict=True))


def _value(scalar: pa.Scalar) -> Any:
    """Text as bytes, since it may be undecodable. What Python cannot hold (a date in the year
    300000) stays as it is: it is refused later, alone, like any other value that is no text."""
    if isinstance(scalar, pa.BinaryScalar):
        return scalar.as_buffer().to_pybytes() if scalar.is_valid else None
    try:
        return scalar.as_py()
    except (ArithmeticError, LookupError, ValueError, pa.ArrowException):
        return scalar


def _read_jsonl(fs: pafs.FileSystem, path: str) -> Numbered:
    compression = COMPRESSIONS.get(PurePosixPath(path).suffix.lower())
    with (
        fs.open_input_stream(path, compression=compression) as stream,
        io.BufferedReader(stream) as lines,
    ):
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _parse(line)


def _parse(line: bytes) -> dict[str, Any] | str:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON in UTF-8 ({error})"
    return fields if isinstance(fields, dict) else "the line is not a JSON object"


# From records to documents


def _documents(records: Iterator[Record], config: InputConfig) -> Source:
    """Every doc_id once, a stand-in for a missing one included: it is a key of the output."""
    used: set[str] = set()
    for place, record in records:
        try:
            if isinstance(record, str):
                raise ValueError(record)
            doc_id = _doc_id(record, config)
            if doc_id in used:
                raise ValueError(f"doc_id {doc_id!r} was already used in this input")
        except ValueError as error:
            document: Document | BadDocument = BadDocument(_unused(place, used), str(error))
        else:
            document = _document(doc_id, record, config)
        used.add(document.doc_id)
        yield document


def _doc_id(record: dict[str, Any], config: InputConfig) -> str:
    if config.id_column is None:
        text = _text(record.get(config.text_column), config.text_column)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    return _id(record.get(config.id_column), config.id_column)


def _document(doc_id: str, record: dict[str, Any], config: InputConfig) -> Document | BadDocument:
    title = record.get(config.title_column) if config.title_column else None
    try:
        text = _text(record.get(config.text_column), config.text_column)
        if not text.strip():
            raise ValueError("the text is empty")
        return Document(doc_id, text, "" if title is None else _text(title, "title"))
    except ValueError as error:
        return BadDocument(doc_id, str(error))


def _unused(place: str, used: set[str]) -> str:
    numbered = (f"{place}~{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain((place,), numbered) if name not in used)


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
    is_number = isinstance(value, int) and not isinstance(value, bool)
    doc_id = str(value) if is_number else _text(value, column)
    if not doc_id.strip():
        raise ValueError(f"{column} is empty")
    return doc_id
