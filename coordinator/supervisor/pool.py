"""The node: what is wanted of it, what it has, and the loop that brings the two together.

Owns desired state (number of slots, paused, draining, stopping) and the slots. Decisions are those
of `core.reconcile`; here they are carried out. It must never end while a training of it lives.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup

from coordinator.core.escalation import Escalation, Step
from coordinator.core.model import DownMode, NodeState, SlotState
from coordinator.core.reconcile import (
    READY_FOR_WORK,
    SPARE_AGENTS,
    Action,
    AddSlot,
    Desired,
    DismissAgents,
    KeepSlot,
    Observed,
    RetireSlot,
    SlotSeen,
    StartAgents,
    plan,
)
from coordinator.core.signals import signal_name
from coordinator.supervisor.endings import Endings
from coordinator.supervisor.prospects import Prospects
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.rounds import Rounds
from coordinator.supervisor.slot import Services, Slot, SlotSettings
from coordinator.supervisor.stays import Stay
from coordinator.supervisor.sweep import SweepWatch
from coordinator.supervisor.training import Training
from coordinator.supervisor.wanted import Wanted

log = structlog.get_logger()

PREEMPTED_EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: run me again later. SLURM scripts requeue on it."""
HURRY_SECONDS = 5.0
TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What the pool needs to know of the configuration."""

    slots: int
    warm_agents: int | Literal["auto"]
    until_done: bool
    grace_seconds: float
    storm_seconds: float
    idle_timeout_seconds: float
    preempt_signal: int
    """What `coordinatorctl preempt` and a retired slot send."""
    graceful_cancel: bool = False
    """A run of a cancelled sweep is preempted, not killed by its agent."""


class Pool:
    """See the module."""

    def __init__(
        self,
        *,
        settings: PoolSettings,
        slot_settings: SlotSettings,
        services: Services,
        sweep: SweepWatch,
        endings: Endings,
        rescues: Rescues,
        prospects: Prospects,
        wanted: Wanted,
    ) -> None:
        self.settings = settings
        self.services = services
        self.sweep = sweep
        self.endings = endings
        self._rescues = rescues
        self._prospects = prospects
        self._idle_since = monotonic()
        self.desired_slots = wanted.slots
        self.paused, self.draining = wanted.paused, wanted.draining
        self.exit_code: int | None = None
        """Set once the daemon is to end: what it exits with when all slots are idle."""
        self.slots: dict[int, Slot] = {}
        self._down = DownMode.DRAIN
        self._slot_settings = slot_settings
        self._escalation = Escalation(settings.storm_seconds)
        self._preempted = False
        self._adopted: dict[int, Stay] = {}
        self._group: TaskGroup | None = None

    # --- what is -------------------------------------------------------------------------------
    @property
    def state(self) -> NodeState:
        """What the node as a whole is doing."""
        if self.exit_code is not None:
            return NodeState.STOPPING
        if self.draining:
            return NodeState.DRAINED if self.is_idle else NodeState.DRAINING
        return NodeState.PAUSED if self.paused else NodeState.RUNNING

    @property
    def is_idle(self) -> bool:
        """No slot has a run."""
        return all(slot.state in READY_FOR_WORK for slot in self.slots.values())

    @property
    def _quiet(self) -> bool:
        """No run, and no ending that is not complete."""
        return self.is_idle and not self.endings.pending

    @property
    def _only_dirt(self) -> bool:
        """The daemon is to end, and all that is left does not die of SIGKILL: waiting is no use."""
        states = {slot.view_state() for slot in self.slots.values()}
        quiet = READY_FOR_WORK | {SlotState.DIRTY}
        return self.exit_code is not None and SlotState.DIRTY in states and states <= quiet

    @property
    def trainings(self) -> list[Training]:
        """Those that live, by slot."""
        return self.services.trainings.all()

    @property
    def _agents_wanted(self) -> bool:
        """Claims are to be made, as soon as there are agents and Redis answers."""
        stopped = self.paused or self._leaving or self._prospects.nothing_now
        return not stopped and self.services.guards.open_for_claims

    @property
    def _claiming(self) -> bool:
        return self._agents_wanted and self.services.leases.admits(None)

    @property
    def _leaving(self) -> bool:
        return self.draining or self.exit_code is not None

    @property
    def wanted(self) -> Wanted:
        """What a successor should want."""
        return Wanted(configured_slots=self.settings.slots, slots=self.desired_slots,
                      paused=self.paused, draining=self.draining)  # fmt: skip

    # --- what is asked ------------------------------------------------------------------------
    def scale(self, slots: int, down: DownMode) -> None:
        """Want `slots` slots; surplus ones end as `down` says."""
        log.info("scaled", slots=slots, before=self.desired_slots, down=down)
        self.desired_slots, self._down = slots, down
        self.services.changed.bump()

    def set_paused(self, paused: bool) -> None:
        """Stop claiming, or claim again; trainings are not touched."""
        self.paused = paused
        log.info("paused" if paused else "resumed")
        self.services.changed.bump()

    def set_draining(self, draining: bool) -> None:
        """Finish what runs and take nothing new, or take work again."""
        self.draining = draining
        if not draining:
            self._preempted = False
            self._escalation = Escalation(self.settings.storm_seconds)
        log.info("drain_began" if draining else "drain_ended")
        self.services.changed.bump()

    def leave(self) -> None:
        """Finish what runs and take nothing new, since the machine may go: a batch job ends so."""
        self._preempted = True
        self.set_draining(True)

    def preempt_all(self, signum: int, grace_seconds: float) -> None:
        """The whole node is to give up its runs: no new ones, a signal, the grace, the end."""
        log.warning("preemption_began", signal=signal_name(signum), grace_seconds=grace_seconds,
                    trainings=len(self.trainings))  # fmt: skip
        self.draining = self._preempted = True
        for slot in self.slots.values():
            slot.stop_claiming(hard=True)
        for training in self.trainings:
            training.preempt(signum, grace_seconds)
        self.services.changed.bump()

    def notice(self, signum: int, source: str) -> None:
        """A preemption notice: the first asks, later ones hurry and kill."""
        self._escalation, step = self._escalation.notice(monotonic())
        log.warning("notice_received", source=source, signal=signal_name(signum), step=step.value)
        match step:
            case Step.ASK:
                self.exit_code = PREEMPTED_EXIT_CODE
                self.preempt_all(signum, self.settings.grace_seconds)
            case Step.HURRY | Step.KILL:
                for training in self.trainings:
                    training.hurry(HURRY_SECONDS if step is Step.HURRY else 0.0)
            case Step.IGNORE:
                pass

    def stop(self, down: DownMode) -> None:
        """End the daemon; trainings end as `down` says."""
        log.info("stop_requested", down=down)
        self.exit_code = 0
        match down:
            case DownMode.DRAIN:
                self.set_draining(True)
            case DownMode.PREEMPT:
                self.preempt_all(self.settings.preempt_signal, self.settings.grace_seconds)
            case DownMode.KILL:
                self.preempt_all(self.settings.preempt_signal, 0.0)

    # --- the loop -----------------------------------------------------------------------------
    async def run(self) -> int:
        """Reconcile until the daemon is to end; the exit code.

        Everything that was started here is gone when this returns.
        """
        code: int | None = None
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._tick)
            self._group.start_soon(self.services.guards.run, lambda: self.trainings)
            rounds = Rounds(self.services, lambda: self.trainings)
            self._group.start_soon(rounds.run)
            for number in list(self._adopted):
                self._do(AddSlot(number))
            while (code := self._finished()) is None:
                self._reconcile()
                await self.services.changed.wait()
            with anyio.CancelScope(shield=True):
                await self.services.agents.end_all()
                await self.endings.settle()
                await rounds.reap()
            self._group.cancel_scope.cancel()
        return code or 0

    def _finished(self) -> int | None:
        """The exit code, once there is nothing left to do."""
        if not self._quiet:
            self._prospects.disturbed()
        if self.endings.pending or not (self.is_idle or self._only_dirt):
            return None
        if self.exit_code is not None:
            return self.exit_code
        if self.services.agents.fatal is not None or self.sweep.deleted:
            return 1
        if self.settings.until_done:
            if self._preempted:
                return PREEMPTED_EXIT_CODE
            if self._prospects.nothing_ever and not self.sweep.undecided:
                return 0
        return None

    def _reconcile(self) -> None:
        if not self.sweep.over:
            self.services.agents.dismiss_guests()
        if self.settings.graceful_cancel:
            self._end_cancelled_runs()
        for slot in self.slots.values():
            if not self._claiming or not self.services.guards.admits(slot.number):
                slot.stop_claiming(hard=False)
        fixed, forks = self.settings.warm_agents, self.services.agents.starter.forks
        by_slots = None if forks else SPARE_AGENTS
        desired = Desired(
            slots=self.desired_slots,
            down=self._down,
            start_agents=self._agents_wanted,
            warm_agents=by_slots if fixed == "auto" else fixed,
            keep_idle_agents=not self._leaving and self._prospects.agents_needed(quiet=self._quiet),
        )
        for action in plan(desired, self._observed()):
            self._do(action)

    def _end_cancelled_runs(self) -> None:
        """Signal and grace for the runs whose agents the server has sent away."""
        for training in self.trainings:
            if training.agent.exit_ordered:
                training.preempt(self.settings.preempt_signal, self.settings.grace_seconds)

    def _observed(self) -> Observed:
        agents = self.services.agents
        return Observed(
            slots=tuple(SlotSeen(s.number, s.state, s.retiring) for s in self.slots.values()),
            ready_agents=len(agents.ready),
            starting_agents=agents.starting,
            proven=agents.proven,
            may_start=agents.may_start,
        )

    def _do(self, action: Action) -> None:
        match action:
            case AddSlot(number):
                slot = Slot(number, self._slot_settings, self.services)
                self.slots[number] = slot
                self._tasks.start_soon(self._serve, slot)
            case KeepSlot(number):
                self.slots[number].retiring = None
            case RetireSlot(number, mode):
                self._retire(self.slots[number], mode)
            case StartAgents(count):
                self.services.agents.start(count)
            case DismissAgents(keep):
                self.services.agents.dismiss(keep)

    def _retire(self, slot: Slot, mode: DownMode) -> None:
        log.info("slot_retiring", slot=slot.number, run_id=slot.run_id, down=mode)
        slot.retiring = mode
        slot.stop_claiming(hard=mode is not DownMode.DRAIN)
        if slot.training is not None and mode is not DownMode.DRAIN:
            grace = self.settings.grace_seconds if mode is DownMode.PREEMPT else 0.0
            slot.training.preempt(self.settings.preempt_signal, grace)

    def adopt(self, stays: Sequence[Stay]) -> None:
        """Take over what earlier daemons of this node started; call it before `run`."""
        for stay in stays:  # a slot may have gone on while the end of its last run was recorded
            free = (number for number in itertools.count() if number not in self._adopted)
            self._adopted[next(free) if stay.slot in self._adopted else stay.slot] = stay
            self.services.shims.announce(stay.agent_token, stay.run_id)

    async def _serve(self, slot: Slot) -> None:
        log.info("slot_added", slot=slot.number)
        self.services.changed.bump()
        if (stay := self._adopted.pop(slot.number, None)) is not None:
            await slot.adopt(stay)
        breakers = self.services.guards.breakers
        while slot.retiring is None:
            if self._claiming and await breakers.enter(slot.number):
                await breakers.leave(slot.number, trained=await slot.turn())
            else:
                await self.services.changed.wait()
        del self.slots[slot.number]
        log.info("slot_removed", slot=slot.number)
        self.services.changed.bump()

    async def _tick(self) -> None:
        """Look again now and then: the health of Redis changes without telling us."""
        while True:
            await anyio.sleep(TICK_SECONDS)
            await self._rescues.settle()
            await self._prospects.look(quiet=self._quiet)
            self._look_for_idleness()
            if not self.services.guards.open_for_claims:
                await self._rescues.relieve(self.services.claims)
            self.services.changed.bump()

    def _look_for_idleness(self) -> None:
        limit = self.settings.idle_timeout_seconds
        if not self._quiet or not limit:
            self._idle_since = monotonic()
        elif self.exit_code is None and monotonic() - self._idle_since >= limit:
            log.info("idle_timeout", idle_seconds=limit, sweep_state=self.sweep.state)
            self.exit_code = 0

    @property
    def _tasks(self) -> TaskGroup:
        assert self._group is not None, "slots are made only while the pool runs"
        return self._group
