"""Compute Engine: preemption and host maintenance, each by a blocking request.

Source: Compute Engine, "Query VM metadata": `wait_for_change`, `last_etag`, `timeout_sec`, and the
header without which the server rejects requests. Compute Engine warns 60 s before a live
migration only if maintenance-event is read.
"""

from collections.abc import Callable
from datetime import datetime
from urllib.parse import urlencode

from coordinator.core.cloud import CloudNotice, gce_maintenance, gce_preempted
from coordinator.notices.metadata import ANSWER_SECONDS, NOT_FOUND, NoDocumentError, Source

PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
HEADERS = {"Metadata-Flavor": "Google"}
WAIT_SECONDS = 60
PAUSE_SECONDS = 0.2
"""Between two requests, to avoid a busy loop if a server does not block."""


async def watch_gce(source: Source) -> None:
    """Wait for notices until cancelled."""
    for path, read in ((PREEMPTED, gce_preempted), (MAINTENANCE, gce_maintenance)):
        source.group.start_soon(source.watch, _Value(source, path, read).poll, PAUSE_SECONDS)


class _Value:
    """One value of the metadata tree."""

    def __init__(
        self, source: Source, path: str, read: Callable[[str, datetime], CloudNotice | None]
    ) -> None:
        self._source = source
        self._path = path
        self._read = read
        self._etag = ""
        self._last = ""

    async def poll(self) -> None:
        query, seconds = "", ANSWER_SECONDS
        if self._etag:  # without it the value may have changed already: do not wait
            wait = {"wait_for_change": "true", "timeout_sec": WAIT_SECONDS, "last_etag": self._etag}
            query, seconds = f"?{urlencode(wait)}", WAIT_SECONDS + ANSWER_SECONDS
        answer = await self._source.ask(self._path + query, HEADERS, seconds=seconds)
        if answer.status == NOT_FOUND:
            raise NoDocumentError(f"HTTP {NOT_FOUND} for {self._path}: is this Compute Engine?")
        self._etag = answer.etag
        if answer.text != self._last:
            self._last = answer.text
            notice = self._read(answer.text, answer.now)
            if notice is not None:
                self._source.tell(notice)
