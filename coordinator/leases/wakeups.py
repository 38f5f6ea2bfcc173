"""Wake-ups: a stream of this node in Redis, read while claims wait, says which lease has ended.

Owns the reader and who waits for which run. It is only an accelerator: each waiter has a timer of
its own, so a lost event costs time and nothing else (LEASES rule 7). It must never decide.

A claim that is refused is noted in the lease's record by its node's name, and who ends that lease
writes to the streams of the nodes noted. So an event costs Redis one entry for each node that
waits for it, however many nodes there are, and nodes where nobody waits read nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import structlog

from coordinator.core.lease import LeaseSettings
from coordinator.leases.connection import Client
from coordinator.leases.renewal import jittered
from coordinator.leases.store import TROUBLE

log = structlog.get_logger()

ANY_RUN: Final = ""
"""The run of news that the server has some run again, for a node that has a free slot."""
BLOCK_SECONDS: Final = 5.0
"""How long one read blocks; the reader's client must have a longer time-out."""
_OVERLAP_MS: Final = 1000
"""A read begins so much before the refusal that led to it; news of before costs one more look."""


class Waiter:
    """One claim that waits for news of one run."""

    def __init__(self, begins: Callable[[], None]) -> None:
        """`begins` is called when somebody begins to wait."""
        self._begins = begins
        self._news = anyio.Event()
        self.waits = False

    def rearm(self) -> None:
        """News from now on count. Call it before asking Redis, so that none falls in between."""
        self._news = anyio.Event()

    def wake(self) -> None:
        """There is news."""
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Return at news, or after `seconds`."""
        self.waits = True
        self._begins()
        try:
            with anyio.move_on_after(seconds):
                await self._news.wait()
        finally:
            self.waits = False


class Wakeups:
    """All waiters of this node and the reader that wakes them."""

    def __init__(
        self, reader: Client, stream: str, settings: LeaseSettings, now_ms: Callable[[], int]
    ) -> None:
        """`reader` is a client of its own: a blocked connection serves nobody else.

        `now_ms` is the server's time, never late.
        """
        self._reader = reader
        self._stream = stream
        self._settings = settings
        self._now_ms = now_ms
        self._waiting: dict[str, set[Waiter]] = {}
        self._last = ""
        """The last entry seen; "" while nothing is read."""
        self._seen = "0-0"
        """The last entry ever seen: no news counts twice."""
        self._wanted = anyio.Event()

    @contextmanager
    def waiter(self, run_id: str) -> Iterator[Waiter]:
        """A waiter for `run_id` while the context lasts."""
        waiter = Waiter(self._begin)
        self._waiting.setdefault(run_id, set()).add(waiter)
        try:
            yield waiter
        finally:
            self._waiting[run_id].discard(waiter)
            if not self._waiting[run_id]:
                del self._waiting[run_id]

    def _begin(self) -> None:
        self._last = self._last or self._first()
        self._wanted.set()

    def _first(self) -> str:
        """After which entry reading begins."""
        overlap = f"{max(self._now_ms() - _OVERLAP_MS, 0)}-0"
        return max(overlap, self._seen, key=_numbers)

    @property
    def _somebody_waits(self) -> bool:
        return any(waiter.waits for waiters in self._waiting.values() for waiter in waiters)

    def wake_all(self) -> None:
        """Everybody looks again."""
        for waiters in list(self._waiting.values()):
            for waiter in waiters:
                waiter.wake()

    async def run(self) -> None:
        """Read for ever, while somebody waits.

        After trouble everybody looks again, since news may have been missed.
        """
        while True:
            await self._wanted.wait()
            try:
                await self._read()
            except TROUBLE as error:
                log.debug("lease_stream_interrupted", problem=str(error))
                await anyio.sleep(jittered(self._settings.renew_seconds / 8, 0.5))
                self._last = ""
                self.wake_all()
            if not self._somebody_waits:
                self._last, self._wanted = "", anyio.Event()

    async def _read(self) -> None:
        block = round(BLOCK_SECONDS * 1000)
        last = self._last or self._first()
        found: Any = await self._reader.xread({self._stream: last}, count=200, block=block)
        self._last = last
        for _, entries in found or ():
            for entry_id, fields in entries:
                self._last = self._seen = entry_id
                for waiter in self._waiting.get(fields.get("run", ""), ()):
                    waiter.wake()


def _numbers(entry_id: str) -> tuple[int, int]:
    """Milliseconds and number of an entry; Redis, "Entry IDs" of streams."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number)
