"""Documents from files of any kind that the job reads, as a stream."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from arkv_sglang.batch.config import InputConfig
from arkv_sglang.batch.inputs import InputFile, check_columns, describe_ignored, find_files
from arkv_sglang.batch.openai_requests import read_request
from arkv_sglang.batch.records import Record, read_file, read_jsonl, read_parquet, read_records
from arkv_sglang.batch.sandbox import Sandbox
from arkv_sglang.batch.types import BadDocument, Document, Source, describe

# Makes a document of an id and a record's fields. Raises ValueError.
Reader = Callable[[str, dict[str, Any]], Document]


def open_documents(
    config: InputConfig,
    models: Collection[str] = (),
    only: Collection[str] | None = None,
    say: Callable[[str], None] | None = None,
) -> Source:
    """Check the input at once (ConfigError), then return an iterator that reads it lazily.

    ``models`` are the names by which an OpenAI request may ask for the engine's model (none: any
    will do). With ``only``, documents of other ids are passed over, and files of text not read.
    ``say`` is told how many files are of another kind."""
    kind, files, ignored = find_files(config)
    if ignored and say:
        say(describe_ignored(ignored))
    read: Reader = partial(_read_columns, config)
    id_column = config.id_column
    if kind == "text":
        sandbox = Sandbox(config.extract_cpu_s)
        records = _file_records(files, sandbox)
        read, id_column = partial(_read_file, config.max_document_mib, sandbox), "doc_id"
    elif kind == "parquet":
        columns = [config.text_column, *filter(None, (config.id_column, config.title_column))]
        check_columns(files, columns)
        records = read_records(files, partial(read_parquet, columns))
    else:
        records = read_records(files, partial(read_jsonl, config.max_document_mib))
        if kind == "openai":
            read, id_column = partial(read_request, models), "custom_id"
    read_id = partial(_read_id, id_column, config.text_column)
    return itertools.islice(_documents(records, read_id, read, only), config.limit)


def _file_records(files: list[InputFile], sandbox: Sandbox) -> Iterator[Record]:
    with sandbox:
        for file in files:
            yield file.name, {"doc_id": file.name, "file": file}


def _documents(
    records: Iterator[Record],
    read_id: Callable[[dict[str, Any]], str],
    read: Reader,
    only: Collection[str] | None,
) -> Source:
    """Every doc_id once, a stand-in for a missing one included: it is a key of the output."""
    used: set[str] = set()
    for place, record in records:
        fault = None
        try:
            if isinstance(record, str):
                raise ValueError(record)
            doc_id = read_id(record)
            if doc_id in used:
                raise ValueError(f"doc_id {doc_id!r} was already used in this input")
        except ValueError as error:
            doc_id = _unused(place, used)
            fault = BadDocument(doc_id, str(error))
        used.add(doc_id)
        if only is None or doc_id in only:
            yield fault or _document(doc_id, record, read)


def _document(doc_id: str, record: Any, read: Reader) -> Document | BadDocument:
    try:
        document = read(doc_id, record)
        if not document.text.strip():
            raise ValueError("the text is empty")
        return document
    except ValueError as error:
        return BadDocument(doc_id, str(error))
    except Exception as error:
        # A file may make its reader raise anything; it costs that document and not the run.
        return BadDocument(doc_id, f"the document cannot be read ({describe(error)})")


def _read_columns(config: InputConfig, doc_id: str, record: dict[str, Any]) -> Document:
    title = record.get(config.title_column) if config.title_column else None
    text = _text(record.get(config.text_column), config.text_column)
    return Document(doc_id, text, "" if title is None else _text(title, "title"))


def _read_file(max_mib: int, sandbox: Sandbox, doc_id: str, record: dict[str, Any]) -> Document:
    return Document(doc_id, _text(read_file(record["file"], max_mib, sandbox), "text"))


def _read_id(id_column: str | None, text_column: str, record: dict[str, Any]) -> str:
    if id_column is None:
        text = _text(record.get(text_column), text_column)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    value = record.get(id_column)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    doc_id = str(value) if is_number else _text(value, id_column)
    if not doc_id.strip():
        raise ValueError(f"{id_column} is empty")
    return doc_id


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
