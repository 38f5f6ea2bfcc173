"""One slot: claims a run, sees it through, is free again when its last process is gone.

Owns the path of a run through this node. A fetched command leaves it in one of four ways: trained,
dropped for a reason, put back, or handed to the other nodes. Never otherwise.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from coordinator.core.model import CommandKind, DownMode, Outcome, SlotState
from coordinator.core.wire import TrainCommand
from coordinator.leases import Claim, Dropped, Lease, Leases
from coordinator.process.kernel import Kernel
from coordinator.supervisor.agent import Agent, AgentState
from coordinator.supervisor.agents import Agents
from coordinator.supervisor.claims import Claims
from coordinator.supervisor.guards import Guards
from coordinator.supervisor.level import Level
from coordinator.supervisor.shims import ShimLink, Shims
from coordinator.supervisor.stays import Exit, Stay, StayFiles, stay_of, utc_now
from coordinator.supervisor.training import Order, Training
from coordinator.supervisor.trainings import Trainings

log = structlog.get_logger()

START_ATTEMPTS = 3
"""Agents that may be tried for one command before it is given to others."""
SHIM_LOOK_SECONDS = 0.5
FREED_SECONDS = 5.0
"""A release that takes longer goes on in the background (the journal keeps it)."""


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """What all slots of a node share."""

    start_seconds: float
    linger_seconds: float
    grace_seconds: float
    """For an adopted training that had been told to end."""
    poll_seconds: float
    stays: StayFiles
    environment: Callable[[CommandKind, int], dict[str, str | None]]
    """Changes to the environment of a training, from its kind and slot number."""
    worker_variables: frozenset[str] = frozenset()
    """See `Training`."""


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the daemon that a slot works with."""

    agents: Agents
    claims: Claims
    shims: Shims
    leases: Leases
    trainings: Trainings
    changed: Level
    guards: Guards
    ended: Callable[[Training], None]
    """Called when a training is gone and its lease is released."""
    kernel: Kernel


@dataclass(frozen=True, slots=True)
class Ready:
    """A run of which everything is there but the word to start."""

    command: TrainCommand
    lease: Lease
    agent: Agent
    link: ShimLink


class Slot:
    """See the module."""

    def __init__(self, number: int, settings: SlotSettings, services: Services) -> None:
        self.number = number
        self.state = SlotState.IDLE
        self.since = utc_now()
        self.retiring: DownMode | None = None
        self.run_id: str | None = None
        self.agent: Agent | None = None
        self._settings = settings
        self._services = services
        self._claiming: anyio.CancelScope | None = None

    @property
    def training(self) -> Training | None:
        """The one that lives here."""
        return self._services.trainings.of_slot(self.number)

    # --- what the pool asks -------------------------------------------------------------------
    def stop_claiming(self, *, hard: bool) -> None:
        """Give up a claim that has not become a training; `hard`: also one that is starting."""
        if self._claiming is not None and (hard or self.state is SlotState.CLAIMING):
            self._claiming.cancel()

    def view_state(self) -> SlotState:
        """The state as people see it."""
        training = self.training
        if training is None or self.state is not SlotState.RUNNING:
            return self.state
        attempt = training.attempt
        if attempt.stuck:
            return SlotState.DIRTY
        if attempt.pid is None:
            return SlotState.STARTING
        if attempt.exited:
            return SlotState.CLOSING
        return SlotState.STOPPING if attempt.stopping else SlotState.RUNNING

    # --- the life of a run --------------------------------------------------------------------
    async def turn(self) -> bool:
        """Claim one run and see it through; False when the claim is called off."""
        ready = await self._claim()
        if ready is not None:
            await self._train(ready)
        self._become(SlotState.IDLE)
        return ready is not None

    async def adopt(self, stay: Stay) -> None:
        """See a training through that an earlier daemon of this node started."""
        agent = Agent(0, stay.agent_token, Path(stay.output))
        agent.adopt(stay.session, stay.run_id)
        training = Training(self.number, stay.train_command, stay.lease, agent,
                            claim=stay.claim, began=stay.began,
                            closing=self._services.leases.closing,
                            kernel=self._services.kernel,
                            worker_variables=self._settings.worker_variables)  # fmt: skip
        self._take(training)
        link = await self._reconnected(stay)
        if link is not None:
            await training.go_on(link, self._settings.grace_seconds)
        if not training.attempt.exited:
            await training.clear_away(await self._exit_of(training))
        await anyio.to_thread.run_sync(self._services.kernel.release, training.claim)
        self._leave(training)

    async def _reconnected(self, stay: Stay) -> ShimLink | None:
        """The shim's new connection; None when it is gone first."""
        async with anyio.create_task_group() as group:
            found: list[ShimLink] = []

            async def await_shim() -> None:
                found.append(await self._services.shims.expect(stay.agent_token, stay.run_id))
                group.cancel_scope.cancel()

            group.start_soon(await_shim)
            while await anyio.to_thread.run_sync(lambda: stay.shim_lives):  # noqa: ASYNC110
                await anyio.sleep(SHIM_LOOK_SECONDS)
            group.cancel_scope.cancel()
        return found[0] if found else None

    async def _claim(self) -> Ready | None:
        ready: Ready | None = None
        with anyio.CancelScope() as self._claiming:
            ready = await self._find_work()
        self._claiming = None
        return ready

    async def _find_work(self) -> Ready:
        """Until a command is ours and its shim stands ready."""
        seen: set[str] = set()
        while True:
            self._become(SlotState.CLAIMING)
            agent = await self._services.agents.reserve()
            try:
                command = await self._services.claims.next(agent)
                if command is None:
                    if agent.state is not AgentState.GONE:  # the server no longer knows it
                        self._services.agents.discard(agent)
                    continue
                if command.run_id in seen:  # the server insists, or no agent starts it: do not spin
                    await self._pause(command)
                seen.add(command.run_id)
                ready = await self._prepare(agent, command)
                if ready is not None:
                    return ready
            finally:
                self._services.agents.give_back(agent)

    async def _pause(self, command: TrainCommand) -> None:
        try:
            await anyio.sleep(self._settings.poll_seconds)
        except anyio.get_cancelled_exc_class():
            await self._services.claims.put_back(command)
            raise

    async def _prepare(self, agent: Agent, command: TrainCommand) -> Ready | None:
        lease = await self._lease(command)
        return None if lease is None else await self._deliver(agent, command, lease)

    async def _lease(self, command: TrainCommand) -> Lease | None:
        """The lease of the run, or None when it is not ours to train."""
        claim = Claim(command.run_id, command.kind, self.number, command.program, command.args)
        self.run_id = command.run_id
        try:
            answer = await self._services.leases.acquire(claim)
        except anyio.get_cancelled_exc_class():
            await self._services.claims.put_back(command)
            raise
        await self._services.claims.settled(command.run_id)
        if isinstance(answer, Dropped):
            log.info("claim_dropped", slot=self.number, run_id=answer.run_id,
                     reason=answer.reason, holder=answer.holder, detail=answer.detail)  # fmt: skip
            self.run_id = None
            return None
        return answer

    async def _deliver(self, agent: Agent, command: TrainCommand, lease: Lease) -> Ready | None:
        """Hand the command to an agent and wait for its shim; None when no agent starts it."""
        services = self._services
        try:
            for attempt in range(START_ATTEMPTS):
                current = agent if attempt == 0 else await self._next_agent(command)
                self._become(SlotState.STARTING, command.run_id)
                link = await self._start(current, command)
                if link is not None:
                    return Ready(command, lease, current, link)
                log.warning("start_failed", slot=self.number, run_id=command.run_id,
                            agent=current.number, attempt=attempt + 1)  # fmt: skip
        except anyio.get_cancelled_exc_class():
            await self._undo(command, lease)
            raise
        await self._undo(command, lease)
        await services.guards.breakers.start_failed(self.number, command.run_id)
        return None

    async def _next_agent(self, command: TrainCommand) -> Agent:
        """Another agent for a command whose first one has died.

        It claims meanwhile: so the plan has an agent started for it, and it can be called off.
        """
        self._become(SlotState.CLAIMING, command.run_id)
        return await self._services.agents.reserve()

    async def _start(self, agent: Agent, command: TrainCommand) -> ShimLink | None:
        """Give `agent` the command; its shim, or None when it ends or takes too long."""
        link: ShimLink | None = None
        self.agent = agent
        self._services.agents.give(agent, command)
        try:
            with anyio.move_on_after(self._settings.start_seconds):
                link = await self._shim_or_end(agent, command.run_id)
        finally:
            if link is None:
                self.agent = None
                self._services.agents.discard(agent)
        return link

    async def _shim_or_end(self, agent: Agent, run_id: str) -> ShimLink | None:
        found: list[ShimLink] = []
        async with anyio.create_task_group() as group:

            async def await_shim() -> None:
                found.append(await self._services.shims.expect(agent.token, run_id))
                group.cancel_scope.cancel()

            async def await_end() -> None:
                await agent.gone.wait()
                group.cancel_scope.cancel()

            group.start_soon(await_shim)
            group.start_soon(await_end)
        return found[0] if found else None

    async def _undo(self, command: TrainCommand, lease: Lease) -> None:
        await self._services.claims.put_back(command)
        with anyio.move_on_after(FREED_SECONDS, shield=True):
            await self._services.leases.release(lease.token, Outcome.LOST_CLAIM)

    async def _train(self, ready: Ready) -> None:
        settings = self._settings
        training = Training(self.number, ready.command, ready.lease, ready.agent,
                            claim=secrets.token_hex(8), began=utc_now(),
                            closing=self._services.leases.closing,
                            kernel=self._services.kernel,
                            worker_variables=self._settings.worker_variables)  # fmt: skip
        self._take(training)
        stay = stay_of(training, ready.link.hello.pid)
        try:
            await anyio.to_thread.run_sync(settings.stays.put, stay)
        except OSError as error:  # it only cannot be adopted then
            self._services.guards.premises.noticed(error)
            log.warning("stay_not_written", run_id=training.run_id, error=error.strerror)
        if not self._services.leases.stands(ready.lease.token):
            await self._call_off(ready, training)
            return
        env = settings.environment(ready.command.kind, self.number)
        env["COORDINATOR_RUN_FENCE"] = str(ready.lease.fence)
        exit_file = settings.stays.exit_file(training.claim)
        kernel = self._services.kernel
        cgroup = await anyio.to_thread.run_sync(kernel.enclose, training.claim)
        await training.run(ready.link, Order(env, settings.linger_seconds, exit_file, cgroup))
        if not training.attempt.exited and (exit_ := await self._exit_of(training)) is not None:
            await training.believe(exit_)
        await anyio.to_thread.run_sync(kernel.release, training.claim)
        self._leave(training)

    async def _exit_of(self, training: Training) -> Exit | None:
        return await anyio.to_thread.run_sync(self._settings.stays.exit_of, training.claim)

    async def _call_off(self, ready: Ready, training: Training) -> None:
        """The lease was lost while the agent started: claim again. The shim gets no word to go."""
        log.info("start_called_off", slot=self.number, run_id=training.run_id)
        self._services.trainings.remove(training)
        self.agent = None
        ready.link.closed.set()
        self._services.agents.discard(ready.agent)
        await anyio.to_thread.run_sync(self._settings.stays.remove, training.claim)
        await self._undo(ready.command, ready.lease)

    def _take(self, training: Training) -> None:
        self._services.trainings.put(training)
        self.agent = training.agent
        self._become(SlotState.RUNNING, training.run_id)

    def _leave(self, training: Training) -> None:
        self._services.trainings.remove(training)
        self.agent = None
        training.agent.run_ended.set()
        self._services.ended(training)

    def _become(self, state: SlotState, run_id: str | None = None) -> None:
        self.state, self.since, self.run_id = state, utc_now(), run_id
        self._services.changed.bump()


def training_environment(
    additions: Mapping[str, str | None], resume: str, gpus: Callable[[int], list[str]]
) -> Callable[[CommandKind, int], dict[str, str | None]]:
    """How the environment of a training differs from its agent's (docs/training.md)."""

    def changes(kind: CommandKind, slot: int) -> dict[str, str | None]:
        env = dict(additions)
        env["COORDINATOR_RUN_SLOT"] = str(slot)
        if kind is CommandKind.RESUME and resume != "off":
            env["WANDB_RESUME"] = resume
        if names := gpus(slot):
            env["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        return env

    return changes
