"""Records of an input's files: what each holds, or a sentence about what is wrong with it."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arkv_sglang.batch.inputs import COMPRESSIONS, InputFile
from arkv_sglang.batch.sandbox import Sandbox
from arkv_sglang.batch.types import describe

MIB = 1 << 20
# What is not text yet, and the sandbox's name of it.
EXTRACTED = {".html": "HTML", ".htm": "HTML", ".pdf": "PDF"}

# A record: where it stands (for want of an id), and its fields or what is wrong with it.
Record = tuple[str, dict[str, Any] | str]
Numbered = Iterator[tuple[int, dict[str, Any] | str]]


def read_records(files: list[InputFile], read: Callable[[InputFile], Numbered]) -> Iterator[Record]:
    """The records of all files, with one more for each file that cannot be read to its end."""
    for file in files:
        number = 0
        try:
            for number, fields in read(file):
                yield f"{file.name}#{number}", fields
        except Exception as error:
            what = f"the rest of {file.name}" if number else file.name
            yield f"{file.name}#{number + 1}", f"{what} cannot be read ({describe(error)})"


def read_parquet(columns: list[str], file: InputFile) -> Numbered:
    number = itertools.count(1)
    with file.fs.open_input_file(file.path) as opened:
        for batch in pq.ParquetFile(opened).iter_batches(batch_size=64, columns=columns):
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


def read_jsonl(max_mib: int, file: InputFile) -> Numbered:
    compression = COMPRESSIONS.get(PurePosixPath(file.path).suffix.lower())
    limit = max_mib * MIB
    with (
        file.fs.open_input_stream(file.path, compression=compression) as stream,
        io.BufferedReader(stream) as lines,
    ):
        for number in itertools.count(1):
            line = lines.readline(limit + 1)
            if not line:
                return
            if len(line) > limit:
                yield number, f"the line is longer than input.max_document_mib {max_mib} MiB"
                while line and not line.endswith(b"\n"):
                    line = lines.readline(limit)
            elif line.strip():
                yield number, _parse(line)


def _parse(line: bytes) -> dict[str, Any] | str:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON in UTF-8 ({error})"
    return fields if isinstance(fields, dict) else "the line is not a JSON object"


def read_file(file: InputFile, max_mib: int, sandbox: Sandbox) -> str | bytes:
    """The text of a document file, as bytes where the file is nothing but text.
    Raises ValueError."""
    # RST stays as it is, like Markdown: it is written to be read, and a converter would drop the
    # directives that it does not know.
    try:
        with file.fs.open_input_stream(file.path, compression=None) as stream:
            data: bytes = stream.read(max_mib * MIB + 1)
    except Exception as error:
        raise ValueError(f"the file cannot be read ({describe(error)})") from None
    if not data:
        raise ValueError("the file is empty")
    if len(data) > max_mib * MIB:
        raise ValueError(f"the file is larger than input.max_document_mib {max_mib} MiB")
    kind = EXTRACTED.get(PurePosixPath(file.path).suffix.lower())
    return sandbox.text(kind, data) if kind else data
