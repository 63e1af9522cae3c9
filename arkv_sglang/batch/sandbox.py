"""Reads PDF and HTML files in a process that a hostile one may hang, fill or crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from arkv_sglang.batch import extract


class Sandbox:
    """Starts the process when it is first needed, and another after a file that ended it. It holds
    at most ``memory_bytes`` of address space, and a file takes ``cpu_s`` seconds of processor time
    at most. It ends with this one, however that ends. To be used by one thread at a time."""

    def __init__(self, cpu_s: float, memory_bytes: int = 2 << 30) -> None:
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def text(self, kind: str, data: bytes) -> str:
        """The text of a file; ``kind`` is one of extract.KINDS. Raises ValueError."""
        connection = self._connection or self._start()
        try:
            connection.send_bytes(kind.encode())
            connection.send_bytes(data)
            reply = connection.recv_bytes()
        except (EOFError, OSError):
            raise ValueError(f"the {kind} {self._complaint(self._stop())}") from None
        text = reply[1:].decode()
        if reply[:1] == extract.FAILED:
            raise ValueError(text)
        return text

    def _start(self) -> Connection:
        self._connection, theirs = Pipe()
        with theirs:
            arguments = (theirs.fileno(), self._cpu_s, self._memory_bytes)
            self._child = subprocess.Popen(
                [sys.executable, "-m", extract.__name__, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[theirs.fileno()],
                # A signal that stops the whole job must not look like a file that cannot be read.
                start_new_session=True,
            )
        return self._connection

    def _stop(self) -> int:
        """End the process, which it does by itself unless it hangs; its exit code."""
        if self._child is None or self._connection is None:
            return 0
        self._connection.close()
        try:
            code = self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            code = self._child.wait()
        self._child = self._connection = None
        return code

    def _complaint(self, code: int) -> str:
        if code in (-signal.SIGPROF, -signal.SIGALRM):
            return (
                f"takes more than {self._cpu_s:g} s of processor time to read; convert it to text, "
                "or raise input.extract_cpu_s"
            )
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return (
            f"ended the process that read it ({how}): it is damaged, or needs more than "
            f"{self._memory_bytes >> 20} MiB of memory; convert it to text"
        )
