"""What became of the runs that this node trained: `coordinatorctl runs`.

Owns `runs.jsonl` in the state directory. A damaged line is passed over: history must never keep the
daemon from starting.
"""

import os
from collections import deque
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog

from coordinator.core.protocol import RunView

log = structlog.get_logger()

KEPT = 2000


class History:
    """Ended and living stays of runs, oldest first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended: deque[RunView] = deque(maxlen=KEPT)
        self._owed: list[bytes] = []
        """Lines that could not be written yet."""
        self._appending = anyio.Lock()
        self._torn = False
        """The file ends in half a line, left by a daemon that was killed while it wrote."""

    def load(self) -> None:
        """Read what earlier daemons wrote; blocks, so call it before the loop runs."""
        with suppress(OSError):
            lines = self._path.read_bytes()
            self._torn = not lines.endswith(b"\n") and bool(lines)
            for line in lines.splitlines():
                with suppress(msgspec.ValidationError, msgspec.DecodeError):
                    self._ended.append(msgspec.json.decode(line, type=RunView))

    async def add(self, view: RunView) -> None:
        """Remember an ended stay; on disk too, as soon as there is room."""
        self._ended.append(view)
        self._owed.append(msgspec.json.encode(view) + b"\n")
        await self.flush()

    async def flush(self) -> None:
        """Write what is owed."""
        async with self._appending:
            lines, self._owed = self._owed, []
            if not lines:
                return
            try:
                await anyio.to_thread.run_sync(self._append, b"".join(lines))
            except OSError as error:
                self._owed = [*lines, *self._owed][-KEPT:]
                log.warning("history_not_written", file=str(self._path), error=error.strerror)

    def knows(self, run_id: str, began: str) -> bool:
        """Whether the end of this stay is on record: a daemon may be killed right after that."""
        return any((view.run_id, view.started) == (run_id, began) for view in self._ended)

    def newest(self, living: list[RunView], limit: int) -> list[RunView]:
        """Newest first, living ones before ended ones; `limit` 0 means all."""
        views = [*reversed(living), *reversed(self._ended)]
        return views[:limit] if limit else views

    def _append(self, lines: bytes) -> None:
        """All or nothing. Raises OSError."""
        rest = b"\n" + lines if self._torn else lines
        with self._path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(end)
                raise
        self._torn = False
