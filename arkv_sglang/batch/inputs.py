"""Which files an input is made of, and of which kind: checked before anything starts."""

from __future__ import annotations

import itertools
import os

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from arkv_sglang.batch.config import InputConfig, is_uri
from arkv_sglang.batch.types import describe
from arkv_sglang.config import ConfigError

SUFFIXES = {
    "parquet": (".parquet",),
    "jsonl": (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst"),
    "text": (".txt", ".md", ".markdown"),
}


def find_files(config: InputConfig) -> tuple[pafs.FileSystem, str, str, list[str]]:
    """The file system, the input's root in it, the kind of documents, and the files of that kind.
    Raises ConfigError."""
    fs, root = _locate(config.path)
    kind, paths = _choose(root, _list(fs, root, config.path), config)
    return fs, root, kind, paths


def _locate(path: str) -> tuple[pafs.FileSystem, str]:
    try:
        # Links stay: the name that was given says the kind, and not that of the file behind it.
        return pafs.FileSystem.from_uri(path if is_uri(path) else os.path.abspath(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"input.path must be a path or a URI, got {path!r} ({describe(error)}); correct it"
        ) from None


def _list(fs: pafs.FileSystem, root: str, given: str) -> list[str]:
    """The file that ``root`` is, or all files below it."""
    try:
        info = fs.get_file_info(root)
        if info.is_file:
            return [root]
        if info.type != pafs.FileType.NotFound:
            found = fs.get_file_info(pafs.FileSelector(root, recursive=True))
            return sorted(each.path for each in found if each.is_file)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"input.path must hold files with names in UTF-8, got {error.object!r} in {given!r}; "
            "rename that one"
        ) from None
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"input.path must be readable, got {given!r} ({describe(error)}); correct it or "
            "the rights to it"
        ) from None
    raise ConfigError(
        f"input.path must exist, got {given!r}; a relative path is taken from the job's "
        "working directory, so give the whole path if the file does not travel with it"
    )


def _choose(root: str, paths: list[str], config: InputConfig) -> tuple[str, list[str]]:
    """The kind of the documents, and the files of that kind."""
    is_file = paths == [root]
    if is_file and config.format != "auto":
        return config.format, paths
    wanted = tuple(SUFFIXES) if config.format == "auto" else (config.format,)
    found = {kind: own for kind in wanted if (own := [p for p in paths if _is_a(kind, p)])}
    if len(found) == 1:
        return found.popitem()
    if found:
        raise ConfigError(
            "input.format must be given for a folder of several kinds, got 'auto' for "
            f"{config.path!r} with {' and '.join(found)}; set it to the kind to read"
        )
    if is_file:
        raise ConfigError(
            "input.format must be given for a file of this name, got 'auto' for "
            f"{config.path!r}; set it to one of {', '.join(SUFFIXES)}"
        )
    suffixes = itertools.chain.from_iterable(SUFFIXES[kind] for kind in wanted)
    raise ConfigError(
        f"input.path must hold documents, got {config.path!r} with no file that ends in "
        f"{', '.join(suffixes)}; name another folder or another input.format"
    )


def _is_a(kind: str, path: str) -> bool:
    return path.lower().endswith(SUFFIXES[kind])


def check_columns(fs: pafs.FileSystem, paths: list[str], columns: list[str]) -> None:
    """That every Parquet file has the columns. Raises ConfigError."""
    for path in paths:
        names = _column_names(fs, path)
        for column in columns:
            if names.count(column) != 1:
                raise ConfigError(
                    f"input columns must exist once in the file, got {column!r} for {path!r}; "
                    f"the file has {', '.join(names)}"
                )


def _column_names(fs: pafs.FileSystem, path: str) -> list[str]:
    try:
        with fs.open_input_file(path) as file:
            names: list[str] = pq.read_schema(file).names
            return names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConfigError(
            f"input.path must be readable as Parquet, got {path!r} ({describe(error)}); correct it"
        ) from None
