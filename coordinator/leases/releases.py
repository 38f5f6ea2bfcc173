"""Releases: what has ended is released until Redis has answered, across restarts too.

Owns the pending releases and their retries. Level-triggered as the renewals are: a pass tries all
that is pending. It must never release a lease whose training's tree may live.
"""

from dataclasses import dataclass, field

import anyio
import anyio.to_thread
import structlog

from coordinator.core.lease import LeaseSettings
from coordinator.leases.answers import Released
from coordinator.leases.journal import Journal, JournalEntry
from coordinator.leases.renewal import jittered
from coordinator.leases.sight import explain
from coordinator.leases.store import TROUBLE, Store

log = structlog.get_logger()


@dataclass(slots=True)
class _Pending:
    entry: JournalEntry
    answered: anyio.Event = field(default_factory=anyio.Event)
    told: bool = False


class Releaser:
    """The pending releases and the loop that empties them."""

    def __init__(self, store: Store, journal: Journal, settings: LeaseSettings) -> None:
        self._store = store
        self._journal = journal
        self._settings = settings
        self._pending: dict[str, _Pending] = {}
        self._work = anyio.Event()
        self._idle = anyio.Event()
        self._idle.set()

    def push(self, entry: JournalEntry) -> anyio.Event:
        """Release `entry.token` in the background; the event is set when Redis has answered.

        Never waits, so that a cancelled claim can call it. The entry is in the journal already.
        """
        pending = self._pending.setdefault(entry.token, _Pending(entry))
        if self._idle.is_set():
            self._idle = anyio.Event()
        self._work.set()
        return pending.answered

    async def drained(self) -> None:
        """Wait until nothing is pending."""
        while self._pending:
            await self._idle.wait()

    async def run(self) -> None:
        """Release for ever."""
        while True:
            await self._work.wait()
            self._work = anyio.Event()
            while not await self.try_all():
                with anyio.move_on_after(jittered(self._settings.renew_seconds / 4)):
                    await self._work.wait()
                self._work = anyio.Event()

    async def try_all(self) -> bool:
        """One pass over what is pending; True when all of it was answered."""
        complete = True
        for pending in list(self._pending.values()):
            complete = await self._release(pending) and complete
        if not self._pending:
            self._idle.set()
        return complete

    async def _release(self, pending: _Pending) -> bool:
        entry = pending.entry
        try:
            answer = await self._store.release(entry.lease, entry.outcome, entry.dropped)
        except TROUBLE as error:
            if not pending.told:
                pending.told = True
                problem = explain(error, self._settings)
                log.warning("lease_release_delayed", run_id=entry.run_id, problem=problem)
            return False
        await anyio.to_thread.run_sync(self._journal.remove, entry.token)
        self._pending.pop(entry.token, None)
        pending.answered.set()
        _tell(entry, answer)
        return True


def _tell(entry: JournalEntry, answer: Released) -> None:
    if entry.outcome is None:
        log.debug("lease_claim_ended", run_id=entry.run_id, slot=entry.slot, status=answer.status)
        return
    log.info(
        "lease_released",
        run_id=entry.run_id,
        slot=entry.slot,
        fence=entry.fence,
        outcome=entry.outcome,
        status=answer.status,
        missed_claim=answer.missed,
    )
