"""Carries out what `core.attempt` decides for one training: it speaks to the shim and the kernel.

Owns the connection and the tasks of one attempt. It decides nothing, and must never report the tree
gone while a process of it lives.
"""

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog

from coordinator.core.attempt import Attempt, Phase, step
from coordinator.core.attempt_events import (
    Action,
    AskWorkers,
    Begin,
    Believed,
    CannotKill,
    DeadlineReached,
    Event,
    Fence,
    Hurry,
    KillEverything,
    LookForOom,
    MarkClosing,
    OutOfMemory,
    Preempt,
    Resumed,
    Signal,
    Stopped,
    Swept,
    Tell,
    Vanished,
)
from coordinator.core.outcome import Ending
from coordinator.core.shim_protocol import (
    Exited,
    Go,
    Hello,
    ShimSays,
    SignalSent,
    Started,
    StartFailed,
    TreeGone,
)
from coordinator.core.signals import signal_name
from coordinator.core.wire import TrainCommand
from coordinator.leases import Lease
from coordinator.process import tree
from coordinator.process.kernel import Kernel
from coordinator.process.workers import signal_workers
from coordinator.supervisor.agent import Agent
from coordinator.supervisor.level import Level
from coordinator.supervisor.shims import ShimLink
from coordinator.supervisor.stays import Exit

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

log = structlog.get_logger()

STOPPED = ("T", "t")
SHIM_KILL_SECONDS = 5.0
"""What a shim may take to kill its tree before we do it, the shim included."""


@dataclass(frozen=True, slots=True)
class Order:
    """What one training is given besides its arguments."""

    env: dict[str, str | None]
    linger_seconds: float
    exit_file: Path
    cgroup: str = ""


class Training:
    """See the module."""

    def __init__(
        self,
        slot: int,
        command: TrainCommand,
        lease: Lease,
        agent: Agent,
        *,
        claim: str,
        began: str,
        closing: Callable[[str], Coroutine[Any, Any, None]],
        kernel: Kernel,
        worker_variables: frozenset[str] = frozenset(),
    ) -> None:
        self.slot = slot
        self.command = command
        self.lease = lease
        self.agent = agent
        self.claim = claim
        """Marks every process of this stay through its environment."""
        self.began = began
        self.attempt = Attempt(by_workers=bool(worker_variables))
        self.changed = Level()
        self._closing = closing
        """Called with the lease's token when the end has begun, so that claims wait for it."""
        self._kernel = kernel
        self._worker_variables = worker_variables
        """By these the processes that a launcher started are known; none: the main one is asked."""
        self._link: ShimLink | None = None
        self._group: TaskGroup | None = None

    # --- what is known -------------------------------------------------------------------------
    @property
    def run_id(self) -> str:
        """The W&B run ID."""
        return self.command.run_id

    @property
    def lived_seconds(self) -> float | None:
        """How long the main process has lived, or did; None when its start was not seen."""
        return self.attempt.lived_seconds(monotonic())

    @property
    def cancelled(self) -> bool:
        """A person has stopped the run, or its sweep, on the server."""
        return self.run_id in self.agent.cancelled_runs

    @property
    def ordered(self) -> bool:
        """It was ended by us, by a person, or because another has the run."""
        return self.attempt.told_to_end or self.cancelled

    def ending(self, server_state: str | None) -> Ending:
        """All that decides the outcome."""
        return self.attempt.ending(server_state, cancelled=self.cancelled)

    # --- what the pool asks -------------------------------------------------------------------
    def send(self, signum: int, *, once: bool) -> None:
        """Signal the main process alone; `once`: not if it had this signal before."""
        self._on(Signal(signum, once))

    def preempt(self, signum: int, grace_seconds: float) -> None:
        """Ask it to end, once; SIGKILL to the whole tree after the grace."""
        self._on(Preempt(signum, grace_seconds))

    def hurry(self, seconds: float) -> None:
        """Let it have at most `seconds` more; a deadline only ever comes nearer."""
        self._on(Hurry(seconds))

    def fence(self) -> None:
        """Another holder exists: the whole tree must go at once, with no word to the server."""
        self._on(Fence())

    # --- the stay -----------------------------------------------------------------------------
    async def run(self, link: ShimLink, order: Order) -> None:
        """Start the training and return when no process of it is left."""
        env = order.env | {tree.CLAIM_VARIABLE: self.claim}
        go = Go(env, order.linger_seconds, str(order.exit_file), order.cgroup)
        await self._see_through(link, Begin(go))

    async def go_on(self, link: ShimLink, grace_seconds: float) -> None:
        """Take over a training that an earlier daemon started; returns when its tree is gone.

        One that had been told to end has `grace_seconds` from now on.
        """
        log.info("run_adopted", **self._facts(), pid=link.hello.child_pid, fence=self.lease.fence)
        await self._see_through(link, Resumed(link.hello, grace_seconds))

    async def clear_away(self, exit_: Exit | None) -> None:
        """End what is left of a training whose shim is gone; `exit_` as the shim wrote it."""
        if exit_ is None:
            self._on(Vanished())
        else:
            await self.believe(exit_)
        await self._sweep("shim_gone")

    async def believe(self, exit_: Exit) -> None:
        """Take the end from the file of a shim that was killed before it could tell of it."""
        self._on(Believed(exit_.pid, exit_.status, exit_.told_to_end))
        await self._look_for_oom()

    async def look(self) -> None:
        """Notice that the main process was stopped, or goes on."""
        pid, before = self.attempt.pid, self.attempt.stopped
        if pid is None or self.attempt.exited:
            return
        stopped = await anyio.to_thread.run_sync(tree.state_of, pid) in STOPPED
        if stopped == before:
            return
        self._on(Stopped(stopped))
        if stopped:
            log.warning("training_frozen", **self._facts(), pid=pid)
        else:
            log.info("training_thawed", **self._facts(), pid=pid)

    async def _see_through(self, link: ShimLink, first: Begin | Resumed) -> None:
        self._link = link
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._enforce)
            self._on(first)
            try:
                await self._listen(link)
            finally:
                link.closed.set()
            if self.attempt.phase is not Phase.GONE:
                await self._sweep("shim_lost")
            self._group.cancel_scope.cancel()

    async def _listen(self, link: ShimLink) -> None:
        async for message in link.messages():
            actions = self._on(message)
            self._heard(message)
            if LookForOom() in actions:
                await self._look_for_oom()
            if self.attempt.phase is Phase.GONE:
                return

    def _heard(self, message: ShimSays) -> None:
        match message:
            case Started(pid):
                log.info("run_started", **self._facts(), kind=self.command.kind, pid=pid,
                         fence=self.lease.fence)  # fmt: skip
            case StartFailed(error):
                log.error("run_start_failed", **self._facts(), error=error)
            case Exited(status):
                self.agent.run_ended.set()
                log.info("run_exited", **self._facts(), pid=self.attempt.pid, **how(status))
            case TreeGone(killed):
                log.info("tree_gone", **self._facts(), killed=killed)
            case SignalSent(signum, origin):
                log.info("signal_sent", **self._facts(), pid=self.attempt.pid,
                         signal=signal_name(signum), origin=origin)  # fmt: skip
            case Hello():
                pass

    # --- events and actions -------------------------------------------------------------------
    def _on(self, event: Event) -> list[Action]:
        """Let the attempt decide, and begin what it asks for."""
        self.attempt, actions = step(self.attempt, event, monotonic())
        for action in actions:
            self._carry_out(action)
        self.changed.bump()
        return actions

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, LookForOom):
            return  # who has seen the end looks before anything else: `_listen`, `believe`
        assert self._group is not None, "nothing is asked for before the word to start"
        assert self._link is not None, "the same"
        match action:
            case Tell(message):
                self._group.start_soon(self._link.send, message)
            case AskWorkers(pid, signum):
                self._group.start_soon(self._ask_workers, pid, signum)
            case MarkClosing():
                self._group.start_soon(self._closing, self.lease.token)
            case KillEverything():
                self._group.start_soon(self._kill)

    async def _enforce(self) -> None:
        """Wait for the deadline, however it moves."""
        while (at := self.attempt.kill_at) is None or at > monotonic():
            with anyio.move_on_after(None if at is None else at - monotonic()):
                await self.changed.wait()
        if self.attempt.phase is not Phase.GONE:
            self._on(DeadlineReached())

    async def _kill(self) -> None:
        log.warning("tree_killed", **self._facts(), pid=self.attempt.pid,
                    fenced=self.attempt.fenced)  # fmt: skip
        await anyio.to_thread.run_sync(self._kernel.kill, self.claim)
        await anyio.sleep(SHIM_KILL_SECONDS)
        await self._sweep("shim_stuck")

    async def _sweep(self, why: str) -> None:
        """End what is left without the shim's help, the shim itself included."""
        session = self.agent.pid

        def find() -> list[int]:
            enclosed = self._kernel.members(self.claim)
            return sorted({*tree.of_claim(self.claim, session), *enclosed})

        killed = await tree.kill_all(find, self._cannot_be_killed)
        if stuck := self.attempt.stuck:
            log.info("slot_clean", **self._facts(), pids=list(stuck))
        self._on(Swept())
        log.warning("tree_swept", **self._facts(), killed=killed, reason=why)

    def _cannot_be_killed(self, pids: list[int]) -> None:
        self._on(CannotKill(tuple(pids)))
        log.error("slot_dirty", **self._facts(), pids=pids)

    async def _look_for_oom(self) -> None:
        signum, pid = self.ending(None).signal, self.attempt.pid or 0
        find = self._kernel.out_of_memory
        if await anyio.to_thread.run_sync(find, self.claim, signum, pid):
            self._on(OutOfMemory())

    async def _ask_workers(self, launcher: int, signum: int) -> None:
        """Signal what the launcher has started; before it has, there is nothing to save."""
        pids = await anyio.to_thread.run_sync(
            signal_workers, launcher, self._worker_variables, signum
        )
        for pid in pids:
            log.info("signal_sent", **self._facts(), pid=pid, signal=signal_name(signum),
                     origin="daemon")  # fmt: skip
        if not pids:
            self.send(signum, once=True)

    def _facts(self) -> dict[str, object]:
        return {"slot": self.slot, "run_id": self.run_id}


def how(status: int) -> dict[str, object]:
    """A wait status in words: exit code or name of the signal."""
    if os.WIFSIGNALED(status):
        return {"signal": signal_name(os.WTERMSIG(status))}
    return {"exit_code": os.waitstatus_to_exitcode(status)}
