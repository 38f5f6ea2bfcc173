"""Renewal: one task renews everything that is held now, in one round trip for each chunk.

Owns the rhythm of renewals and what their answers mean. Level-triggered: it looks at what is held
each time, there is no timer of a single lease. It must never stop a training for an error.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import assert_never

import anyio
import structlog

from coordinator.core.lease import HolderEvent, Lease, LeaseSettings
from coordinator.leases.answers import Renewed, RenewStatus
from coordinator.leases.clock import boottime_seconds
from coordinator.leases.holdings import Holding, Holdings
from coordinator.leases.sight import Sight
from coordinator.leases.store import CHUNK, TROUBLE, Store, once_more

log = structlog.get_logger()
_random = secrets.SystemRandom()


def jittered(seconds: float, spread: float = 0.1) -> float:
    """`seconds` give or take `spread`, so that nodes do not fall into step."""
    return seconds * _random.uniform(1 - spread, 1 + spread)


class Renewer:
    """The loop. `on_reasserted` gets each holding whose record had to be written anew."""

    def __init__(
        self,
        store: Store,
        holdings: Holdings,
        sight: Sight,
        settings: LeaseSettings,
        on_reasserted: Callable[[Holding], None],
    ) -> None:
        self._store = store
        self._holdings = holdings
        self._sight = sight
        self._settings = settings
        self._on_reasserted = on_reasserted
        self._kick = anyio.Event()
        self._round_ended = anyio.Event()
        self._epoch: int | None = None

    def kick(self) -> None:
        """Renew now rather than in due time."""
        self._kick.set()

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            self._kick = anyio.Event()
            delay = self._delay(succeeded=await self.round())
            self._round_ended.set()
            self._round_ended = anyio.Event()
            with anyio.move_on_after(delay):
                await self._kick.wait()

    async def round_ended(self) -> None:
        """Wait for the end of the present round or, between two, of the next."""
        await self._round_ended.wait()

    async def round(self) -> bool:
        """Renew everything once; with nothing held it still reports the node alive."""
        leases = self._holdings.renewable()
        chunks = [leases[at : at + CHUNK] for at in range(0, len(leases), CHUNK)] or [[]]
        for chunk in chunks:
            if not await self._renew(chunk, len(leases)):
                return False
        return True

    async def _renew(self, chunk: Sequence[Lease], held: int) -> bool:
        sent = boottime_seconds()
        try:
            answers = await once_more(partial(self._store.renew_many, chunk, held))
        except TROUBLE as error:
            self._sight.bad(error)
            self._holdings.missed(boottime_seconds())
            return False
        self._sight.good(sent)
        wiped = self._note_epoch()
        for lease, answer in zip(chunk, answers, strict=True):
            self._act(lease, answer, sent, wiped=wiped)
        return True

    def _act(self, lease: Lease, answer: Renewed, sent: float, *, wiped: bool) -> None:
        match answer.status:
            case RenewStatus.OK:
                self._holdings.renewed(lease.token, sent, answer.fence)
                if wiped:  # written anew by a renewal whose answer was lost
                    self._written_anew(lease, answer)
            case RenewStatus.REASSERTED:
                self._holdings.renewed(lease.token, sent, answer.fence)
                self._written_anew(lease, answer)
            case RenewStatus.TAKEN:
                self._holdings.saw_fence(answer.fence)
                self._holdings.apply(lease.token, HolderEvent.TAKEN)
            case RenewStatus.FREED | RenewStatus.RELEASED:
                self._holdings.apply(lease.token, HolderEvent.FREED)
            case _:
                assert_never(answer.status)

    def _written_anew(self, lease: Lease, answer: Renewed) -> None:
        holding = self._holdings.get(lease.token)
        if holding is not None:
            log.warning("lease_reasserted", run_id=lease.run_id, fence=answer.fence)
            self._on_reasserted(holding)

    def _note_epoch(self) -> bool:
        """True when Redis has lost its data since the last answer."""
        epoch = self._store.epoch
        if self._epoch is None or epoch is None or epoch == self._epoch:
            self._epoch = epoch
            return False
        wiped = epoch > self._epoch
        if not wiped:
            log.warning("redis_clock_went_back", seconds=(self._epoch - epoch) / 1000)
        else:
            log.error(
                "redis_wiped",
                settle_seconds=self._settings.settle_seconds,
                held=len(self._holdings),
            )
        self._epoch = epoch
        return wiped

    def _delay(self, *, succeeded: bool) -> float:
        """After a failure the next try comes sooner; it never waits for less than 10 ms."""
        cfg = self._settings
        delay = jittered(cfg.renew_seconds if succeeded else cfg.renew_seconds / 4)
        oldest = self._holdings.oldest_sent_seconds
        if cfg.on_lease_loss == "strict" and oldest is not None:
            due = oldest + cfg.stop_after_seconds - boottime_seconds()
            delay = min(delay, due) if due > 0 else delay
        return max(delay, 0.01)
