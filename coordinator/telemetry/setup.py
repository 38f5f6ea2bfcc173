"""Sets up structlog and logging; the interface of telemetry for the rest of the daemon.

Owns the order of the steps of an event: record, redact, publish, write. A log call must never raise
an exception.
"""

import atexit
import contextlib
import os
import sys
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, TextIO

import anyio.to_thread
import msgspec
import structlog

from coordinator.telemetry.console import Console
from coordinator.telemetry.hub import Event, Hub, Subscription
from coordinator.telemetry.line import HEAD, human_line
from coordinator.telemetry.plain import clean, plain
from coordinator.telemetry.redact import Redactor
from coordinator.telemetry.rotation import EventsFile
from coordinator.telemetry.stdlib import Capture
from coordinator.telemetry.writer import Line, Marker, Writer

Format = Literal["auto", "json", "console"]
REMEMBERED = 1000
"""Events kept in memory for `tail` if there is no events file."""
_FLUSH_SECONDS = 2.0
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(
    format: Format = "auto",
    events_file: Path | None = None,
    max_bytes: int = 10_000_000,
    keep: int = 5,
    node: str = "",
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> "Telemetry":
    """Send every event to stderr (or `stream`) and, if given, to `events_file`.

    `format` "auto" means console lines on a terminal and JSON lines elsewhere. Errors of the file
    are not raised; they become the event `events_file_write_failed`.
    """
    file = None
    if events_file is not None:
        with contextlib.suppress(OSError):
            events_file.parent.mkdir(parents=True, exist_ok=True)
        file = EventsFile(events_file, max_bytes, keep)
    console = Console(stream or sys.stderr)
    telemetry = Telemetry(node, file, console, human=_is_human(format, console))
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            telemetry.process,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.ReturnLoggerFactory(),
        # Loggers are module globals: a cached one would keep the setup of an earlier test.
        cache_logger_on_first_use=False,
    )
    telemetry.start()
    return telemetry


def _is_human(format: Format, console: Console) -> bool:
    return format == "console" or (format == "auto" and console.is_terminal)


class Telemetry:
    """The running pipeline. `close()` writes waiting events and undoes the setup."""

    def __init__(
        self, node: str, file: EventsFile | None, console: Console, *, human: bool
    ) -> None:
        self._node = node
        self._human = human
        self._colour = console.is_terminal and "NO_COLOR" not in os.environ
        self._redactor = Redactor()
        self._hub = Hub()
        self._writer = Writer(file, console)
        self._remembered: deque[Event] | None = deque(maxlen=REMEMBERED) if file is None else None
        self._capture = Capture()

    def start(self) -> None:
        """Take over logging and warnings of the standard library."""
        self._capture.start()
        atexit.register(self.close)

    def close(self) -> None:
        """End subscriptions, write waiting events (limited), restore structlog and logging."""
        atexit.unregister(self.close)
        self._capture.stop()
        self._hub.close()
        self._writer.close(_FLUSH_SECONDS)
        structlog.reset_defaults()

    def register_secret(self, value: str) -> None:
        """Redact `value` in every event from now on; shorter than 4 characters is ignored."""
        self._redactor.register(value)

    def redact(self, text: str) -> str:
        """`text` ready to be shown: without secrets and safe to encode."""
        return self._redactor.text(clean(text))

    def subscribe(self, buffer: int = 1000) -> Subscription:
        """Events from now on. Call it in the event loop; `buffer` events may wait."""
        with self._hub.lock:
            return self._subscribe(buffer)

    async def follow(self, past: int, buffer: int = 1000) -> Subscription:
        """The last `past` events, then new ones: none missing, none twice."""
        with self._hub.lock:
            subscription = self._subscribe(buffer)
            marker, remembered = self._mark()
        try:
            events = await anyio.to_thread.run_sync(_read, marker, remembered, past)
        except BaseException:
            subscription.close()
            raise
        subscription.preload(events)
        return subscription

    def tail(self, count: int) -> list[Event]:
        """The last `count` events, oldest first. Reads files: call it in a worker thread."""
        with self._hub.lock:
            marker, remembered = self._mark()
        return _read(marker, remembered, count)

    def process(self, _logger: Any, _method: str, fields: structlog.typing.EventDict) -> NoReturn:
        """The last processor of structlog: nothing is passed on."""
        record = self._record(fields)
        line = msgspec.json.encode(record) + b"\n"
        shown = line
        if self._human:
            shown = (human_line(record, colour=self._colour) + "\n").encode()
        with self._hub.lock:
            if self._remembered is not None:
                self._remembered.append(record)
            self._hub.publish(record)
            self._writer.put(Line(line, shown))
        raise structlog.DropEvent

    def _record(self, fields: structlog.typing.EventDict) -> Event:
        """The four head fields, then the caller's in the caller's order."""
        name, level = fields.pop("event", ""), fields.pop("level", "info")
        record: Event = {
            "ts": _now(),
            "event": self._redactor.text(str(plain(name))),
            "level": level,
            "node": self._node,
        }
        for key, value in fields.items():
            # A field of the caller must not replace one of the four.
            shown = f"{key}_" if key in HEAD else key
            record[shown] = self._redactor.field(key, plain(value))
        return record

    def _lost_event(self, lost: int) -> Event:
        return {
            "ts": _now(),
            "event": "events_lost",
            "level": "warning",
            "node": self._node,
            "lost": lost,
        }

    def _subscribe(self, buffer: int) -> Subscription:
        subscription = Subscription(self._hub, buffer, self._lost_event)
        self._hub.add(subscription)
        return subscription

    def _mark(self) -> tuple[Marker, list[Event] | None]:
        remembered = None if self._remembered is None else list(self._remembered)
        return self._writer.mark(), remembered

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _now() -> str:
    """RFC 3339, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read(marker: Marker, remembered: list[Event] | None, count: int) -> list[Event]:
    """The last `count` events before `marker`; lines that are not JSON objects are skipped."""
    if remembered is not None:
        return remembered[-count:] if count else []
    if not marker.reached.wait(_FLUSH_SECONDS) or marker.snapshot is None:
        return []
    events: list[Event] = []
    for line in marker.snapshot.last(count):
        with contextlib.suppress(msgspec.DecodeError):
            events.append(msgspec.json.decode(line, type=dict[str, Any]))
    return events
