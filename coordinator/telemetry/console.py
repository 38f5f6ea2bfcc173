"""Writes lines to stderr.

Owns that stream. A reader that does not read loses lines but never blocks the daemon: each line
waits briefly, and not at all while the stream is known to be stuck.
"""

import os
import select
from typing import TextIO

_PATIENCE_MS = 50


class Console:
    """One line at a time to `stream`; used by one thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stuck = False
        self._lost = 0
        try:
            self._fd: int | None = stream.fileno()
        except (OSError, ValueError, AttributeError):  # replaced by something without a file
            self._fd = None

    @property
    def is_terminal(self) -> bool:
        """True if stderr is a terminal."""
        return self._fd is not None and os.isatty(self._fd)

    def write(self, line: bytes) -> None:
        """Write `line`, or count it as lost."""
        try:
            if self._fd is None:
                self._stream.write(line.decode("utf-8", "replace"))
            elif self._writable(self._fd):
                os.write(self._fd, line)
            else:
                self._lost += 1
        except (OSError, ValueError):  # closed, a full disk, a terminal that hung up
            self._stuck = True
            self._lost += 1

    def take_lost(self) -> int:
        """Lines lost since last asked; 0 while the stream is still stuck."""
        if self._stuck:
            return 0
        lost, self._lost = self._lost, 0
        return lost

    def _writable(self, fd: int) -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLOUT)
        ready = poll.poll(0 if self._stuck else _PATIENCE_MS)
        self._stuck = not ready
        return bool(ready)
