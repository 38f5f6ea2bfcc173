"""Turns log records of libraries (aiohttp, redis, asyncio) and warnings into events.

Owns the root logger's handler while it is started. Only WARNING and above: libraries log a lot.
"""

import logging

import structlog

log = structlog.get_logger()


class Capture(logging.Handler):
    """A handler of the root logger that turns records into the event `library_logged`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._before: tuple[int, list[logging.Handler]] | None = None

    def start(self) -> None:
        """Replace the root logger's handlers."""
        root = logging.getLogger()
        self._before = (root.level, root.handlers[:])
        root.handlers[:] = [self]
        root.setLevel(logging.WARNING)
        logging.captureWarnings(True)

    def stop(self) -> None:
        """Restore the root logger."""
        if self._before is None:
            return
        root = logging.getLogger()
        level, handlers = self._before
        self._before = None
        logging.captureWarnings(False)
        root.setLevel(level)
        root.handlers[:] = handlers

    def emit(self, record: logging.LogRecord) -> None:
        """Log `record` as an event; errors in its arguments must not reach the library."""
        try:
            message = record.getMessage()
        except Exception:
            message = str(record.msg)
        fields = {"logger": record.name, "message": message, "exc_info": record.exc_info}
        if record.levelno >= logging.ERROR:
            log.error("library_logged", **fields)
        else:
            log.warning("library_logged", **fields)
