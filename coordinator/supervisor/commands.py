"""Answers coordinatorctl: turns each request into a call on the pool, or says why not.

Owns the meaning of targets ("3", a run ID, "all") and of `scale`'s argument. It must never do by
itself what the pool can do.
"""

import re
from typing import assert_never

from coordinator.core.model import NodeState
from coordinator.core.protocol import (
    Answer,
    ChangeSweep,
    Done,
    Drain,
    Failed,
    GetLease,
    GetLeases,
    GetNodes,
    GetRuns,
    GetStatus,
    Invalid,
    Pause,
    Preempt,
    Refused,
    ReleaseLease,
    RequestUnion,
    Resume,
    Scale,
    Signal,
    StealLease,
    Stop,
    Undrain,
)
from coordinator.core.signals import signal_name, signal_number
from coordinator.errors import CoordinatorError
from coordinator.supervisor.lease_commands import LeaseCommands
from coordinator.supervisor.pool import Pool
from coordinator.supervisor.sweep_commands import SweepCommands
from coordinator.supervisor.training import Training
from coordinator.supervisor.views import Views
from coordinator.supervisor.wanted import WantedFile

MOST_SLOTS = 1024
_SCALE = re.compile(r"[+-]?\d{1,5}")


class Commands:
    """See the module."""

    def __init__(self, pool: Pool, views: Views, sweep: SweepCommands, wanted: WantedFile) -> None:
        self._pool = pool
        self._views = views
        self._sweep = sweep
        self._wanted = wanted
        self._leases = LeaseCommands(pool.services.leases)

    async def handle(self, request: RequestUnion) -> Answer:
        """The answer to one request; never raises for what a user may type."""
        before = self._pool.wanted
        answer = await self._answer(request)
        if self._pool.wanted != before and self._pool.state is not NodeState.STOPPING:
            await self._wanted.put(self._pool.wanted)
        return answer

    async def _answer(self, request: RequestUnion) -> Answer:  # noqa: PLR0911 - one case a request
        match request:
            case GetStatus() | GetRuns():
                return await self._show(request)
            case GetLeases() | GetLease() | ReleaseLease() | StealLease() | GetNodes():
                return await self._leases.handle(request)
            case ChangeSweep():
                return await self._sweep.handle(request)
            case Scale():
                return self._scale(request)
            case Signal(signal, target):
                return self._signal(signal, target)
            case Preempt(target, grace_seconds):
                return self._preempt(target, grace_seconds)
            case Drain() | Undrain() | Pause() | Resume() | Stop():
                return await self._switch(request)
            case _:
                assert_never(request)

    async def _show(self, request: GetStatus | GetRuns) -> Answer:
        if isinstance(request, GetStatus):
            return Done(data=self._views.status())
        if request.run_id is None:
            return Done(data=self._views.runs(request.limit))
        try:
            return Done(data=await self._views.stays(request.run_id, request.limit))
        except CoordinatorError as error:
            return Failed(str(error))

    async def _resume(self) -> Answer:
        """After a pause, or after a breaker: both ask for claims again."""
        pool, breakers = self._pool, self._pool.services.guards.breakers
        closed = breakers.reset() + await breakers.reset_sweep()
        pool.set_paused(False)
        return Done(f"claiming again; breakers closed: {closed}" if closed else "claiming again")

    async def _pardon(self, run_id: str) -> Answer:
        try:
            pardoned = await self._pool.services.guards.breakers.pardon(run_id)
        except CoordinatorError as error:
            return Failed(str(error))
        if pardoned:
            return Done(f"run {run_id} may be trained again; it is in the rescue queue")
        return Refused(f"run {run_id!r} is not quarantined; see `leases show {run_id}`")

    async def _switch(self, request: Drain | Undrain | Pause | Resume | Stop) -> Answer:
        pool = self._pool
        if isinstance(request, Resume) and request.run_id is not None:
            return await self._pardon(request.run_id)
        if isinstance(request, Stop):
            pool.stop(request.down)
            return Done(f"stopping; {len(pool.trainings)} trainings end first")
        if pool.state is NodeState.STOPPING:
            return Refused("the daemon is stopping")
        if isinstance(request, Drain | Undrain):
            pool.set_draining(isinstance(request, Drain))
            return Done("draining" if pool.draining else "taking work again")
        if isinstance(request, Resume):
            return await self._resume()
        pool.set_paused(True)
        return Done("paused")

    def _scale(self, request: Scale) -> Answer:
        pool = self._pool
        if pool.state is NodeState.STOPPING:
            return Refused("the daemon is stopping")
        if not _SCALE.fullmatch(request.target):
            return Invalid(f"{request.target!r} is no number of slots; use 8, +2 or -1")
        number = int(request.target)
        relative = request.target[0] in "+-"
        slots = pool.desired_slots + number if relative else number
        if not 0 <= slots <= MOST_SLOTS:
            return Invalid(f"{slots} slots are not between 0 and {MOST_SLOTS}")
        before = pool.desired_slots
        pool.scale(slots, request.down)
        return Done(f"slots: {before} -> {slots}")

    def _signal(self, signal: str, target: str) -> Answer:
        try:
            number = signal_number(signal)
        except ValueError as error:
            return Invalid(str(error))
        found = self._find(target)
        if isinstance(found, Answer):
            return found
        for training in found:
            training.send(number, once=False)
        return Done(f"{signal_name(number)} sent to {_count(found)}")

    def _preempt(self, target: str | None, grace_seconds: float | None) -> Answer:
        settings = self._pool.settings
        grace = settings.grace_seconds if grace_seconds is None else grace_seconds
        if grace < 0:
            return Invalid(f"a grace of {grace} s is negative")
        if target is None:
            self._pool.preempt_all(settings.preempt_signal, grace)
            return Done("the node gives up its runs; `coordinatorctl undrain` takes work again")
        found = self._find(target)
        if isinstance(found, Answer):
            return found
        for training in found:
            training.preempt(settings.preempt_signal, grace)
        return Done(f"preempting {_count(found)}")

    def _find(self, target: str) -> list[Training] | Answer:
        """The trainings that a target names; an answer when it names none."""
        living = self._pool.trainings
        if target == "all":
            return living or Refused("no training runs here")
        found = [t for t in living if target in {str(t.slot), t.run_id}]
        if found:
            return found
        if target.isdecimal() and int(target) in self._pool.slots:
            return Refused(f"slot {target} has no training")
        return Invalid(f"{target!r} is no slot, no running run ID and not `all`; see `status`")


def _count(trainings: list[Training]) -> str:
    return f"{len(trainings)} training{'s' if len(trainings) != 1 else ''}"
