"""Wake-ups: the event stream in Redis, read by one blocking reader, wakes the claims that wait.

Owns the reader and who waits for which run. It is only an accelerator: each waiter has a timer of
its own, so a lost event costs time and nothing else (LEASES rule 7). It must never decide.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import structlog

from coordinator.core.lease import LeaseSettings
from coordinator.leases.connection import Client
from coordinator.leases.renewal import jittered
from coordinator.leases.store import TROUBLE

log = structlog.get_logger()

BLOCK_SECONDS: Final = 5.0
"""How long one read blocks; the reader's client must have a longer time-out."""


class Waiter:
    """One claim that waits for news of one run."""

    def __init__(self) -> None:
        self._news = anyio.Event()

    def rearm(self) -> None:
        """News from now on count. Call it before asking Redis, so that none falls in between."""
        self._news = anyio.Event()

    def wake(self) -> None:
        """There is news."""
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Return at news, or after `seconds`."""
        with anyio.move_on_after(seconds):
            await self._news.wait()


class Wakeups:
    """All waiters of this node and the reader that wakes them."""

    def __init__(self, reader: Client, stream: str, settings: LeaseSettings) -> None:
        """`reader` is a client of its own: a blocked connection serves nobody else."""
        self._reader = reader
        self._stream = stream
        self._settings = settings
        self._waiting: dict[str, set[Waiter]] = {}
        self._last = "$"

    @contextmanager
    def waiter(self, run_id: str) -> Iterator[Waiter]:
        """A waiter for `run_id` while the context lasts."""
        waiter = Waiter()
        self._waiting.setdefault(run_id, set()).add(waiter)
        try:
            yield waiter
        finally:
            self._waiting[run_id].discard(waiter)
            if not self._waiting[run_id]:
                del self._waiting[run_id]

    def wake_all(self) -> None:
        """Everybody looks again."""
        for waiters in list(self._waiting.values()):
            for waiter in waiters:
                waiter.wake()

    async def run(self) -> None:
        """Read for ever. After trouble everybody looks again, since news may have been missed."""
        while True:
            try:
                await self._read()
            except TROUBLE as error:
                log.debug("lease_stream_interrupted", problem=str(error))
                self._last = "$"
                await anyio.sleep(jittered(self._settings.renew_seconds / 8))
                self.wake_all()

    async def _read(self) -> None:
        block = round(BLOCK_SECONDS * 1000)
        found: Any = await self._reader.xread({self._stream: self._last}, count=200, block=block)
        for _, entries in found or ():
            for entry_id, fields in entries:
                self._last = entry_id
                for waiter in self._waiting.get(fields.get("run", ""), ()):
                    waiter.wake()
