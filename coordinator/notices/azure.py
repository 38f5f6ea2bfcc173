"""Azure: scheduled events of this machine, and their acknowledgement.

Source: "Azure Metadata Service: Scheduled Events for Linux VMs": ask once a second; the very first
request enables the service and may take two minutes; a machine gets the events of its whole set
and identifies its own by name; a StartRequest lets an event start before NotBefore.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from coordinator.core.cloud import CloudNotice, Response, azure_events, azure_start_request, respond
from coordinator.notices.metadata import ANSWER_SECONDS, NOT_FOUND, NoDocumentError, Source

POLL_SECONDS = 1.0
FIRST_ANSWER_SECONDS = 130.0
HEADERS = {"Metadata": "true"}
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"


async def watch_azure(source: Source, *, acknowledge: bool) -> None:
    """Watch for events until cancelled; `acknowledge` those for which everything has ended."""
    await source.watch(_Azure(source, acknowledge=acknowledge).poll, POLL_SECONDS)


class _Azure:
    def __init__(self, source: Source, *, acknowledge: bool) -> None:
        self._source = source
        self._acknowledge = acknowledge
        self._machine = ""
        self._seconds = FIRST_ANSWER_SECONDS

    async def poll(self) -> None:
        if not self._machine:
            answer = await self._source.ask(NAME, HEADERS)
            if answer.status == NOT_FOUND:
                raise NoDocumentError(f"HTTP {NOT_FOUND} for the machine's name: is this Azure?")
            self._machine = answer.text.strip()
        answer = await self._source.ask(EVENTS, HEADERS, seconds=self._seconds)
        self._seconds = ANSWER_SECONDS
        for notice in azure_events(answer.body or b"{}", self._machine, answer.now):
            self._source.tell(notice, self._afterwards(notice))

    def _afterwards(self, notice: CloudNotice) -> Callable[[], Awaitable[None]] | None:
        given_up = respond(notice, Response.IGNORE) is Response.PREEMPT
        return partial(self._start, notice) if self._acknowledge and given_up else None

    async def _start(self, notice: CloudNotice) -> None:
        """Nothing runs here any more: the event does not need to wait."""
        await self._source.ask(
            EVENTS, HEADERS, method="POST", data=azure_start_request(notice.identity)
        )
