"""Child processes that somebody else started and waits for."""

from __future__ import annotations

import os
import signal

import psutil


class Child:
    """A child of this process, by its command."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            # Padded where a process has set its title.
            self._command = " ".join(" ".join(psutil.Process(pid).cmdline()).split())
        except psutil.Error:
            self._command = f"process {pid}"

    def __str__(self) -> str:
        return self._command

    @property
    def is_alive(self) -> bool:
        try:
            return bool(psutil.Process(self._pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    @property
    def killed_by(self) -> str | None:
        """The signal that ended it, as long as nobody has asked for it."""
        try:
            end = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if end is None or end.si_code not in (os.CLD_KILLED, os.CLD_DUMPED):
            return None
        return signal.Signals(end.si_status).name
