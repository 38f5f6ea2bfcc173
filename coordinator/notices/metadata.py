"""One cloud's metadata service: HTTP requests; each notice and each failure is reported once.

Owns the requests and their time-outs. Time is taken from the service's own `Date`, so that a wrong
clock on this machine neither shortens nor lengthens a deadline. Proxies are not used: the services
only answer their own machine.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
import anyio
import structlog
from anyio.abc import TaskGroup

from coordinator.core.cloud import Cloud, CloudNotice

log = structlog.get_logger()

ANSWER_SECONDS = 5.0
RETRY_SECONDS = 5.0
OK, NO_CONTENT, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND = 200, 204, 400, 401, 404

Heed = Callable[[CloudNotice], Awaitable[None]]
"""Acts on a notice; returns when the node has finished its reaction."""


@dataclass(frozen=True, slots=True)
class Document:
    """An answer of the service: a document, or none (404)."""

    status: int
    body: bytes
    now: datetime
    etag: str

    @property
    def found(self) -> bool:
        """True if there is a document."""
        return self.status != NOT_FOUND

    @property
    def text(self) -> str:
        """The document as text."""
        return self.body.decode(errors="replace")


class NoDocumentError(Exception):
    """The service refused; caught by `Source.watch`."""


TROUBLE = (NoDocumentError, aiohttp.ClientError, TimeoutError, ValueError)
"""Refused, unreachable, too slow, or not a document of the vendor."""


class Source:
    """One cloud's service."""

    def __init__(
        self, cloud: Cloud, url: str, session: aiohttp.ClientSession, group: TaskGroup, heed: Heed
    ) -> None:
        self.cloud = cloud
        self.url = url.rstrip("/")
        self.group = group
        self._session = session
        self._heed = heed
        self._told: set[str] = set()
        self._reached = False
        self._failing: set[object] = set()
        """The polls that failed last; a single failing poll among others is also reported once."""

    async def ask(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        data: bytes | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> Document:
        """Send one request; 401 and 404 are answers too.

        Raises NoDocumentError for another refusal, aiohttp.ClientError, TimeoutError.
        """
        async with self._session.request(
            method, self.url + path, headers=headers, data=data, allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=seconds),
        ) as answer:  # fmt: skip
            body = await answer.read()
            status, dated = answer.status, answer.headers.get("Date", "")
            etag = answer.headers.get("ETag", "")
        if status not in {OK, NO_CONTENT, UNAUTHORIZED, NOT_FOUND}:
            raise NoDocumentError(f"HTTP {status} for {path.partition('?')[0]}")
        return Document(status, body, _time(dated), etag)

    async def watch(self, poll: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        """Call `poll` forever; a failure is reported once, until it works again."""
        while True:
            try:
                await poll()
            except TROUBLE as error:
                if not self._failing:
                    self._complain(error)
                self._failing.add(poll)
                self._reached = False
                await anyio.sleep(RETRY_SECONDS)
            else:
                self._failing.discard(poll)
                self._answered()
                await anyio.sleep(pause_seconds)

    def tell(
        self, notice: CloudNotice, afterwards: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Act on `notice`, once, then call `afterwards`. Watching continues."""
        if notice.identity not in self._told:
            self._told.add(notice.identity)
            self.group.start_soon(self._act, notice, afterwards)

    async def _act(
        self, notice: CloudNotice, afterwards: Callable[[], Awaitable[None]] | None
    ) -> None:
        await self._heed(notice)
        if afterwards is not None:
            try:
                await afterwards()
            except TROUBLE as error:
                self._complain(error)

    def _answered(self) -> None:
        if not self._failing and not self._reached:
            self._reached = True
            log.info("notice_source_reached", source=self.cloud.value, url=self.url)

    def _complain(self, error: Exception) -> None:
        log.warning("notice_source_failed", source=self.cloud.value, url=self.url,
                    reason=_words(error))  # fmt: skip


def _time(dated: str) -> datetime:
    try:
        return parsedate_to_datetime(dated).astimezone(UTC)
    except ValueError:
        return datetime.now(UTC)


def _words(error: Exception) -> str:
    """The error in words, without the library's notation."""
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number else str(error.os_error)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
