"""The thread that writes events, so that no disk and no reader of stderr can block the daemon.

Owns the events file and the console while it runs. Lines go to the file first. Failures of either
are reported once as an event and counted, and again when they are over; the caller never sees them.
"""

import contextlib
import queue
import threading
from dataclasses import dataclass, field
from typing import assert_never

import structlog

from coordinator.telemetry.console import Console
from coordinator.telemetry.rotation import EventsFile, Snapshot

log = structlog.get_logger()

MAX_WAITING = 20_000
"""Lines that may wait for a hanging disk; further lines are lost and counted."""


@dataclass(frozen=True, slots=True)
class Line:
    """One event in both its forms."""

    json: bytes
    console: bytes


@dataclass(slots=True)
class Marker:
    """A position in the order of events: `snapshot` is what was written before it."""

    reached: threading.Event = field(default_factory=threading.Event)
    snapshot: Snapshot | None = None


class Writer:
    """Accepts lines from any thread and never blocks it."""

    def __init__(self, file: EventsFile | None, console: Console) -> None:
        self._file = file
        self._console = console
        self._queue: queue.SimpleQueue[Line | Marker | None] = queue.SimpleQueue()
        self._file_lost = 0
        self._queue_lost = 0
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def put(self, line: Line) -> None:
        """Queue `line` for writing."""
        if self._queue.qsize() >= MAX_WAITING:
            self._queue_lost += 1
            return
        self._queue.put(line)

    def mark(self) -> Marker:
        """A marker after everything that was queued before."""
        marker = Marker()
        self._queue.put(marker)
        return marker

    def close(self, timeout_seconds: float) -> None:
        """Write waiting lines, then end; give up after `timeout_seconds`."""
        self._queue.put(None)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._handle(item)
        # This thread's own events about the last lines were queued after the end.
        while not self._queue.empty():
            self._handle(self._queue.get())
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def _handle(self, item: Line | Marker | None) -> None:
        match item:
            case Marker():
                self._reach(item)
            case Line():
                self._write_file(item.json)
                self._console.write(item.console)
                self._tell_lost()
            case None:
                pass
            case _:
                assert_never(item)

    def _reach(self, marker: Marker) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                marker.snapshot = self._file.snapshot()
        marker.reached.set()

    def _write_file(self, line: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(line)
        except OSError as error:
            self._file_lost += 1
            if self._file_lost == 1:
                log.warning(
                    "events_file_write_failed",
                    path=str(self._file.path),
                    error=error.strerror or str(error),
                )
            return
        if self._file_lost:
            lost, self._file_lost = self._file_lost, 0
            log.warning("events_file_write_resumed", path=str(self._file.path), lost=lost)

    def _tell_lost(self) -> None:
        if self._queue_lost and self._queue.qsize() < MAX_WAITING // 2:
            lost, self._queue_lost = self._queue_lost, 0
            log.warning("events_not_written", lost=lost)
        console_lost = self._console.take_lost()
        if console_lost:
            log.warning("console_lines_lost", lost=console_lost)
