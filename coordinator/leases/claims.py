"""Claims: the path of a token, from the journal to a lease and from a lease to its release.

Owns the order of disk and network: a token is on disk before any request bears it and leaves the
disk after its release was answered. It must never start or stop a training.
"""

from collections.abc import Collection, Mapping
from uuid import uuid4

import anyio
import anyio.to_thread
import msgspec
import structlog

from coordinator.core.lease import (
    Claim,
    Dropped,
    DropReason,
    HolderEvent,
    HolderState,
    Lease,
    LeaseSettings,
)
from coordinator.core.model import Outcome
from coordinator.errors import PeerError
from coordinator.leases.clock import boottime_seconds
from coordinator.leases.holdings import Holding, Holdings
from coordinator.leases.journal import Journal, JournalEntry
from coordinator.leases.negotiation import Negotiation, Won
from coordinator.leases.releases import Releaser
from coordinator.leases.renewal import jittered
from coordinator.leases.sight import Sight
from coordinator.leases.store import Store
from coordinator.leases.wakeups import Wakeups

log = structlog.get_logger()

ACQUIRES_AT_ONCE = 4
"""Fewer than the connections, so that renewals and releases never queue behind acquires."""


class Claims:
    """Everything that is asked for, held or given back by this node."""

    def __init__(
        self,
        *,
        store: Store,
        journal: Journal,
        holdings: Holdings,
        releaser: Releaser,
        wakeups: Wakeups,
        sight: Sight,
        settings: LeaseSettings,
    ) -> None:
        self._store = store
        self._journal = journal
        self._holdings = holdings
        self._releaser = releaser
        self._wakeups = wakeups
        self._sight = sight
        self._settings = settings
        self.limit = anyio.CapacityLimiter(ACQUIRES_AT_ONCE)
        self._talks: set[Negotiation] = set()
        self._over = False

    async def load(self, alive: Collection[str], ended: Mapping[str, Outcome]) -> None:
        """Take up the journal: what lives is held again, everything else is released."""
        entries, broken = await anyio.to_thread.run_sync(self._journal.load)
        for path in broken:
            log.error("lease_journal_unreadable", path=str(path))
        for entry in entries:
            self._holdings.saw_fence(entry.fence)
            if entry.token in alive and entry.state != "releasing":
                self._holdings.add(Holding(entry.lease, entry.claim, boottime_seconds()))
            else:
                self._releaser.push(_ended(entry, ended))
        if entries:
            log.info("lease_journal_loaded", entries=len(entries), adopted=len(self._holdings))

    def end(self) -> None:
        """Every claim that still waits fails with PeerError at its next step."""
        self._over = True
        for talk in self._talks:
            talk.closed = True
        self._wakeups.wake_all()

    async def acquire(self, claim: Claim) -> Lease | Dropped:
        """See `api.Leases.acquire`."""
        while True:
            if self._over:
                raise PeerError("the lease keeper is closing")
            result = await self._claim(claim)
            if result is not None:
                return result

    async def _claim(self, claim: Claim) -> Lease | Dropped | None:
        """One token's way; None when its lease was lost again before it could be handed out."""
        entry = JournalEntry.of(claim, uuid4().hex)
        talk = Negotiation(
            claim,
            entry.token,
            store=self._store,
            holdings=self._holdings,
            sight=self._sight,
            settings=self._settings,
            limit=self.limit,
        )
        self._talks.add(talk)
        try:
            await self._write_ahead(entry)
            result = await talk.negotiate(self._wakeups)
            if isinstance(result, Won):
                return await self._hold(entry, result)
        except BaseException:
            await self._give_back(entry, asked=talk.asked)
            raise
        finally:
            self._talks.discard(talk)
        await self._give_up(entry, result, unsure=talk.unsure)
        return result

    async def _hold(self, entry: JournalEntry, won: Won) -> Lease | None:
        """Renewals begin before the journal knows the fence: the token alone suffices there.

        So this write need not outlive a power cut, which no training does; a sync here would be
        paid by every start. A slow disk may still take longer than the lease lasts, so its state
        is looked at again.
        """
        held = msgspec.structs.replace(entry, state="held", fence=won.fence)
        holding = Holding(held.lease, held.claim, won.sent_seconds, handed_out=False)
        self._holdings.add(holding)
        await self._write(held, durable=False)
        if not self._holdings.hand_out(holding, boottime_seconds()):
            await self._give_back(entry, asked=True)
            return None
        fields = {"run_id": entry.run_id, "slot": entry.slot, "fence": won.fence}
        if won.why == "takeover":
            log.warning("lease_taken_over", kind=entry.kind, **fields)
        else:
            log.info("lease_acquired", kind=entry.kind, **fields)
        return holding.lease

    async def _give_back(self, entry: JournalEntry, *, asked: bool) -> None:
        """A claim that came to nothing: what Redis may know of it is released."""
        self._holdings.remove(entry.token)
        if asked:
            self._releaser.push(entry)
            return
        await self._erase(entry.token)

    async def _give_up(self, entry: JournalEntry, dropped: Dropped, *, unsure: bool) -> None:
        """A dropped claim is noted in the registry: the W&B server believes the run is with us."""
        if dropped.reason not in {DropReason.FINISHED, DropReason.QUARANTINED}:
            noted = msgspec.structs.replace(entry, state="releasing", dropped=dropped.reason)
            self._releaser.push(noted)
            return
        await self._give_back(entry, asked=unsure)

    async def release(self, token: str, outcome: Outcome) -> None:
        """See `api.Leases.release`. A token that is not held any more is left alone."""
        holding = self._holdings.get(token)
        if holding is None:
            return
        if holding.state is HolderState.LOST:
            await self.forget(token)
            return
        self._holdings.apply(token, HolderEvent.RELEASED)
        self._holdings.remove(token)
        entry = msgspec.structs.replace(
            JournalEntry.of(holding.claim, token),
            state="releasing",
            fence=holding.lease.fence,
            outcome=outcome,
        )
        with anyio.CancelScope(shield=True):
            await self._write(entry)
        answered = self._releaser.push(entry)
        with anyio.move_on_after(self._settings.timeout_seconds):
            await answered.wait()
        if not answered.is_set():
            self._sight.doubt()

    async def forget(self, token: str) -> None:
        """See `api.Leases.forget`."""
        self._holdings.remove(token)
        await self._erase(token)

    async def _erase(self, token: str) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._journal.remove, token)

    async def _write_ahead(self, entry: JournalEntry) -> None:
        """No request before its token is on disk, so a full disk makes the claim wait."""
        while not await self._write(entry):  # noqa: ASYNC110 - nobody announces a disk's space
            await anyio.sleep(jittered(self._settings.renew_seconds / 4))

    async def _write(self, entry: JournalEntry, *, durable: bool = True) -> bool:
        try:
            await anyio.to_thread.run_sync(self._journal.put, entry, durable)
        except OSError as error:
            log.error("lease_journal_failed", run_id=entry.run_id, problem=str(error))
            return False
        return True


def _ended(entry: JournalEntry, ended: Mapping[str, Outcome]) -> JournalEntry:
    """The release of a journalled claim whose tree is gone."""
    outcome = ended.get(entry.token, entry.outcome)
    if outcome is None and entry.state == "held":
        outcome = Outcome.CRASHED
    return msgspec.structs.replace(entry, state="releasing", outcome=outcome)
