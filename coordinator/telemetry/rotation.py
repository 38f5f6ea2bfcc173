"""The events file: one JSON object per line, rotated by size.

Owns the file and its older parts `NAME.1` (newest) to `NAME.<keep>`. One thread uses it. It raises
OSError to the caller, and must never leave half a line.
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

_MODE = 0o640
_CHUNK = 65_536
_MAX_PARTS = 64
"""Maximum number of parts opened to read past events."""


class EventsFile:
    """Appends lines to `path` and rotates it before it grows beyond `max_bytes`."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd: int | None = None
        self._size = 0

    def write(self, line: bytes) -> None:
        """Append `line`, which ends in a newline. Raises OSError; then nothing was written."""
        fd = self._opened()
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
            fd = self._opened()
        written = os.write(fd, line)
        if written < len(line):  # the disk is full: remove the partial line
            os.ftruncate(fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._size += written

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def snapshot(self) -> "Snapshot":
        """The current content of the file and its older parts; readable after a rotation."""
        parts: list[Part] = []
        for number in range(min(self._keep, _MAX_PARTS) + 1):
            try:
                fd = os.open(self._part(number), os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            parts.append(Part(fd, os.fstat(fd).st_size))
        return Snapshot(parts)

    def _part(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def _opened(self) -> int:
        """The file at `path`; reopened if it was moved or removed."""
        if self._fd is not None:
            ours = os.fstat(self._fd)
            try:
                there = self.path.stat()
            except FileNotFoundError:
                there = None
            if there is not None and (ours.st_ino, ours.st_dev) == (there.st_ino, there.st_dev):
                return self._fd
            self.close()
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, _MODE)
        self._size = os.fstat(self._fd).st_size
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            # A process died in the middle of a line; do not append to that line.
            self._size += os.write(self._fd, b"\n")
        return self._fd

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep - 1, -1, -1):
            try:
                self._part(number).replace(self._part(number + 1))
            except FileNotFoundError:
                continue


@dataclass(frozen=True, slots=True)
class Part:
    """An open file; only its first `size` bytes are used."""

    fd: int
    size: int


class Snapshot:
    """Open parts, newest first. Reading blocks on the disk: do it in a worker thread."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def last(self, count: int) -> list[bytes]:
        """The last `count` lines, oldest first; closes the parts."""
        lines: list[bytes] = []
        try:
            for part in self._parts:
                if len(lines) >= count:
                    break
                lines = _last_lines(part, count - len(lines)) + lines
        finally:
            for part in self._parts:
                os.close(part.fd)
        return lines


def _last_lines(part: Part, count: int) -> list[bytes]:
    """The last `count` lines of one part, read backwards in chunks."""
    position, tail = part.size, b""
    while position > 0 and tail.count(b"\n") <= count:
        start = max(0, position - _CHUNK)
        tail = os.pread(part.fd, position - start, start) + tail
        position = start
    lines = [line for line in tail.split(b"\n") if line]
    return lines[-count:] if count else []
