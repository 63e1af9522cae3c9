"""Files under one folder, local or on an object store: each is there whole, or not at all."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

_TORN = re.compile(r"\.[0-9a-f]{8}\.tmp$")


def is_torn(name: str) -> bool:
    """Whether it is what a store had not finished, which nobody reads."""
    return _TORN.search(name) is not None


class Store:
    """Names are relative to the folder. What fails raises OSError, FileNotFoundError included."""

    def __init__(self, uri: str) -> None:
        """Raises OSError, ValueError or pa.ArrowException when ``uri`` names no file system."""
        self.fs, self.root = pafs.FileSystem.from_uri(uri)
        # Two stores never write the same temporary file.
        self._tag = secrets.token_hex(4)

    @property
    def is_local(self) -> bool:
        return isinstance(self.fs, pafs.LocalFileSystem)

    def path(self, name: str) -> str:
        """As ``fs`` names it."""
        return f"{self.root}/{name}" if name else self.root

    def make_folder(self, name: str = "") -> None:
        self.fs.create_dir(self.path(name), recursive=True)

    def names(self, folder: str = "", missing_ok: bool = False) -> list[str]:
        """The files in ``folder``, sorted, without those of the folders in it. If ``missing_ok``,
        there may be no such folder."""
        prefix = f"{folder}/" if folder else ""
        selector = pafs.FileSelector(self.path(folder), allow_not_found=missing_ok)
        found = self.fs.get_file_info(selector)
        return sorted(prefix + info.base_name for info in found if info.is_file)

    def read(self, name: str) -> bytes:
        with self.fs.open_input_stream(self.path(name), compression=None) as stream:
            data: bytes = stream.read()
        return data

    def delete(self, name: str) -> None:
        """One that is gone already is deleted, too."""
        with suppress(FileNotFoundError):
            self.fs.delete_file(self.path(name))

    @contextmanager
    def create(self, name: str, durable: bool = True) -> Iterator[Any]:
        """A binary file to write to, which gets its name when the block ends without an error."""
        target = self.path(name)
        temporary = f"{target}.{self._tag}.tmp"
        try:
            if self.is_local:
                with open(temporary, "wb") as file:
                    yield file
                    file.flush()
                    if durable:
                        os.fsync(file.fileno())
                os.replace(temporary, target)
                if durable:
                    _sync_folder(Path(target).parent)
            else:
                with self.fs.open_output_stream(temporary, compression=None) as stream:
                    yield stream
                self.fs.move(temporary, target)
        except BaseException:
            with suppress(OSError, pa.ArrowException):
                self.fs.delete_file(temporary)
            raise

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file that loses its meaning with the power. Object stores put it whole."""
        if self.is_local:
            with self.create(name, durable=False) as file:
                file.write(data)
        else:
            with self.fs.open_output_stream(self.path(name), compression=None) as stream:
                stream.write(data)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
