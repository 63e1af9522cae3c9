"""What a process and its children wrote to stderr before an end that nothing else explains."""

from __future__ import annotations

import os
import re
import stat

# Of the text; an exception of whatever length is within.
_TAIL_BYTES = 1 << 20
_STDERR = "/proc/self/fd/2"
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:\s.*\n)+(\S.*)")


class LastWords:
    """What comes from now on. Only a file can be read back, which stderr is in Ray's workers."""

    def __init__(self) -> None:
        self._start = self._size()

    def exception(self) -> str | None:
        """The last exception of which a traceback was written, in one line."""
        start, end = self._start, self._size()
        if start is None or end is None:
            return None
        with open(_STDERR, "rb") as file:
            file.seek(max(start, end - _TAIL_BYTES))
            return last_exception(file.read().decode(errors="replace"))

    def _size(self) -> int | None:
        status = os.fstat(2)
        return status.st_size if stat.S_ISREG(status.st_mode) else None


def last_exception(text: str) -> str | None:
    """The last line of the last traceback in a text."""
    raised: list[str] = _RAISED.findall(text)
    return raised[-1].strip() if raised else None
