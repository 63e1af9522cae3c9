"""Which files an input is made of, and of which kind: checked before anything starts."""

from __future__ import annotations

import glob
import itertools
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from fsspec.utils import glob_translate

from arkv_sglang.batch.config import InputConfig, is_uri
from arkv_sglang.batch.types import describe
from arkv_sglang.config import ConfigError

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
JSON_LINES = tuple(
    suffix + compression for suffix in (".jsonl", ".ndjson") for compression in ("", *COMPRESSIONS)
)
SUFFIXES = {
    "parquet": (".parquet",),
    "jsonl": JSON_LINES,
    "text": (".txt", ".md", ".markdown", ".rst", ".html", ".htm", ".pdf"),
    "openai": JSON_LINES,
}
# OpenAI's batches look like any other JSON Lines, so they are only read when asked for.
GUESSED = ("parquet", "jsonl", "text")


@dataclass(frozen=True, slots=True)
class InputFile:
    """``name`` is the path from the input's root; ``chosen`` says that the file itself, and not
    its folder, is what input.path names."""

    fs: pafs.FileSystem
    path: str
    name: str
    chosen: bool

    @property
    def is_hidden(self) -> bool:
        return not self.chosen and _is_hidden(self.name)


class Found(NamedTuple):
    """The kind of the documents, the files of that kind, and all others that are there."""

    kind: str
    files: list[InputFile]
    ignored: list[InputFile]


def find_files(config: InputConfig) -> Found:
    """What input.path names. Raises ConfigError."""
    found: dict[tuple[str, str], InputFile] = {}
    for given in config.path:
        for file in _find(given):
            place = (file.fs.type_name, file.path)
            if file.chosen or place not in found:
                found[place] = file
    visible = [file for file in found.values() if not file.is_hidden]
    kind, files = _choose(visible, config)
    if kind == "text":
        _check_names(files)
    read = {id(file) for file in files}
    return Found(kind, files, [file for file in found.values() if id(file) not in read])


def describe_ignored(ignored: Sequence[InputFile]) -> str:
    """``ignored: 3 files (2 .docx, 1 .log)``; of at least one."""
    counts = Counter(
        "hidden" if file.is_hidden else PurePosixPath(file.name).suffix.lower() or "without suffix"
        for file in ignored
    ).most_common()
    kinds = ", ".join(f"{count:,} {kind}" if counts[1:] else kind for kind, count in counts)
    return f"ignored: {len(ignored):,} file{'s' if ignored[1:] else ''} ({kinds})"


# Finding


def _find(given: str) -> list[InputFile]:
    fs, path = _locate(given)
    try:
        info = fs.get_file_info(path)
        if info.type == pafs.FileType.NotFound and glob.has_magic(path):
            files = _match(fs, path)
        else:
            files = _walk(fs, info, path)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"input.path must hold files with names in UTF-8, got {error.object!r} in {given!r}; "
            "rename that one"
        ) from None
    except FileNotFoundError:
        raise ConfigError(
            f"input.path must exist, got {given!r}; a relative path is taken from the job's "
            "working directory, so give the whole path if the file does not travel with it"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise _out_of_reach(given, error) from None
    except ValueError as error:
        raise ConfigError(
            f"input.path must be a path, a URI or a pattern, got {given!r} ({error}); correct it"
        ) from None
    return sorted(files, key=lambda file: file.path)


def _locate(given: str) -> tuple[pafs.FileSystem, str]:
    try:
        # Links stay: the name that was given says the kind, and not that of the file behind it.
        return pafs.FileSystem.from_uri(given if is_uri(given) else os.path.abspath(given))
    except ValueError as error:
        raise ConfigError(
            f"input.path must be a path or a URI, got {given!r} ({describe(error)}); correct it"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise _out_of_reach(given, error) from None


def _out_of_reach(given: str, error: Exception) -> ConfigError:
    remedy = "correct it or the rights to it"
    if is_uri(given):
        remedy = (
            "check its name, the network and the credentials of this machine, or copy the files "
            "to where it reads them"
        )
    return ConfigError(f"input.path must be readable, got {given!r} ({describe(error)}); {remedy}")


def _walk(fs: pafs.FileSystem, info: pafs.FileInfo, root: str) -> list[InputFile]:
    """The file that ``info`` is, or all files below it. Raises FileNotFoundError."""
    if info.type == pafs.FileType.NotFound:
        raise FileNotFoundError(info.path)
    if info.is_file:
        return [InputFile(fs, info.path, _relative(info.path, root), chosen=True)]
    found = fs.get_file_info(pafs.FileSelector(info.path, recursive=True))
    return [
        InputFile(fs, each.path, _relative(each.path, root), chosen=False)
        for each in found
        if each.is_file
    ]


def _match(fs: pafs.FileSystem, pattern: str) -> list[InputFile]:
    """The files that the pattern matches, and those below the folders that it matches.
    Raises FileNotFoundError."""
    whole = PurePosixPath(pattern)
    fixed = tuple(itertools.takewhile(lambda part: not glob.has_magic(part), whole.parts))
    root = str(PurePosixPath(*fixed))
    selector = pafs.FileSelector(root, recursive=len(whole.parts) > len(fixed) + 1)
    matches = re.compile(glob_translate(str(whole))).match
    found = [info for info in fs.get_file_info(selector) if matches(info.path)]
    if not found:
        raise FileNotFoundError(pattern)
    # A file below a folder may match by itself, too, as with **: the files come last.
    found.sort(key=lambda info: info.is_file)
    files = {file.path: file for info in found for file in _walk(fs, info, root)}
    if any(part.startswith(".") for part in whole.parts[len(fixed) :]):
        return list(files.values())
    # As in a shell, a star stands for no name that begins with a dot.
    return [
        replace(file, chosen=file.chosen and not _is_hidden(file.name)) for file in files.values()
    ]


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/") or PurePosixPath(path).name


# Choosing


def _choose(files: list[InputFile], config: InputConfig) -> tuple[str, list[InputFile]]:
    shown = repr(config.path[0] if len(config.path) == 1 else config.path)
    wanted = GUESSED if config.format == "auto" else (config.format,)
    # Whoever names files and their format does not need the suffixes.
    trusted = config.format != "auto"
    found = {
        kind: own
        for kind in wanted
        if (own := [file for file in files if (trusted and file.chosen) or _is_a(kind, file)])
    }
    if len(found) == 1:
        return found.popitem()
    if found:
        raise ConfigError(
            "input.format must be given for files of several kinds, got 'auto' for "
            f"{shown} with {' and '.join(found)}; set it to the kind to read"
        )
    suffixes = ", ".join(itertools.chain.from_iterable(SUFFIXES[kind] for kind in wanted))
    if any(file.chosen for file in files):
        raise ConfigError(
            f"input.path must name files that end in {suffixes}, got {shown}; convert them, or set "
            f"input.format if they are one of {', '.join(SUFFIXES)} under another name"
        )
    raise ConfigError(
        f"input.path must hold documents, got {shown} with no file that ends in {suffixes}; "
        "name another folder or another input.format"
    )


def _is_a(kind: str, file: InputFile) -> bool:
    return file.path.lower().endswith(SUFFIXES[kind])


def _check_names(files: list[InputFile]) -> None:
    """The name of a document file is its doc_id."""
    first: dict[str, InputFile] = {}
    for file in files:
        if first.setdefault(file.name, file) is not file:
            raise ConfigError(
                "input.path must hold files whose paths below it differ, since these are their "
                f"ids, got {file.name!r} for {first[file.name].path!r} and {file.path!r}; name "
                "the folder above both, or a pattern that begins there"
            )


# Columns


def check_columns(files: list[InputFile], columns: list[str]) -> None:
    """That the Parquet files have the columns. Raises ConfigError. A file that cannot be read is
    left to cost its rows alone, unless there is no other."""
    errors = [error for file in files if (error := _check_schema(file, columns))]
    if len(errors) == len(files):
        raise ConfigError(
            f"input.path must be readable as Parquet, got {files[0].path!r} ({errors[0]}); "
            "correct it"
        )


def _check_schema(file: InputFile, columns: list[str]) -> str | None:
    """Why the file cannot be read, if it cannot. Raises ConfigError."""
    try:
        with file.fs.open_input_file(file.path) as opened:
            names = pq.read_schema(opened).names
    except (pa.ArrowException, OSError, ValueError) as error:
        return describe(error)
    for column in columns:
        if names.count(column) != 1:
            raise ConfigError(
                f"input columns must exist once in the file, got {column!r} for {file.path!r}; "
                f"the file has {', '.join(names)}"
            )
    return None
