"""One run's stay in a slot, from the shim's first word to the end of the process tree.

Owns the signals that a training gets: each notice at most one, the grace, then SIGKILL to the whole
tree. It must never report the tree gone while a process of it lives.
"""

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import structlog

from coordinator.core.outcome import Ending
from coordinator.core.shim_protocol import (
    Exited,
    Go,
    Hello,
    KillTree,
    SendSignal,
    ShimSays,
    ShimTold,
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
        self._closing = closing
        """Called with the lease's token when the end has begun, so that claims wait for it."""
        self._kernel = kernel
        self._worker_variables = worker_variables
        """By these the processes that a launcher started are known; none: the main one is asked."""
        self.pid: int | None = None
        self.status: int | None = None
        self._started_at: float | None = None
        self._exited_at: float | None = None
        self.error = ""
        self.preempted = False
        self.fenced = False
        self.killed = False
        self.oom = False
        self.frozen = False
        """Its main process was seen stopped (state T of proc(5))."""
        self.stuck: list[int] = []
        """Processes that do not die of SIGKILL."""
        self.changed = Level()
        self._link: ShimLink | None = None
        self._owed: list[ShimTold] = []
        self._kill_at: float | None = None
        self._gone = False
        self._group: TaskGroup | None = None

    @property
    def run_id(self) -> str:
        """The W&B run ID."""
        return self.command.run_id

    @property
    def stopping(self) -> bool:
        """Asked to end, and the grace runs."""
        return self._kill_at is not None and self.status is None

    @property
    def lived_seconds(self) -> float | None:
        """How long the main process has lived, or did; None when its start was not seen."""
        if self._started_at is None:
            return None if self.pid is not None or not self.error else 0.0
        return (self._exited_at or monotonic()) - self._started_at

    @property
    def ordered(self) -> bool:
        """It was ended by us, by a person, or because another has the run."""
        by_person = self.run_id in self.agent.cancelled_runs
        return self.preempted or self.killed or self.fenced or by_person

    @property
    def exited(self) -> bool:
        """The main process has ended."""
        return self.status is not None

    # --- what the pool asks -------------------------------------------------------------------
    def send(self, signum: int, *, once: bool) -> None:
        """Signal the main process alone; `once`: not if it had this signal before."""
        self._tell(SendSignal(signum, once))

    def preempt(self, signum: int, grace_seconds: float) -> None:
        """Ask it to end, once; SIGKILL to the whole tree after the grace."""
        if not self.preempted and not self.exited:
            self.preempted = True
            self._end_began()
            if self._worker_variables and self._group is not None and self.pid:
                self._tell(SendSignal(0, preempt=True))
                self._group.start_soon(self._ask_workers, self.pid, signum)
            else:
                self._tell(SendSignal(signum, once=True, preempt=True))
            if self.frozen:  # or it would never see the signal
                self.send(SIGCONT, once=True)
        self.hurry(grace_seconds)

    def hurry(self, seconds: float) -> None:
        """Let it have at most `seconds` more; a deadline only ever comes nearer."""
        at = monotonic() + seconds
        if self._kill_at is None or at < self._kill_at:
            self._kill_at = at
            self.changed.bump()

    def fence(self) -> None:
        """Another holder exists: the whole tree must go at once, with no word to the server."""
        self.fenced = True
        self.hurry(0.0)

    def ending(self, server_state: str | None) -> Ending:
        """All that decides the outcome."""
        status = self.status
        signal = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
        code = os.waitstatus_to_exitcode(status) if status is not None and signal is None else None
        return Ending(
            exit_code=code,
            signal=signal,
            started=self.pid is not None or bool(self.error),
            preempted=self.preempted,
            killed=self.killed,
            fenced=self.fenced,
            oom=self.oom,
            cancelled=self.run_id in self.agent.cancelled_runs,
            server_state=server_state,
        )

    # --- the stay -----------------------------------------------------------------------------
    async def run(self, link: ShimLink, order: Order) -> None:
        """Start the training and return when no process of it is left."""
        env = order.env | {tree.CLAIM_VARIABLE: self.claim}
        await self._see_through(link, Go(env, order.linger_seconds, str(order.exit_file),
                                            order.cgroup))  # fmt: skip

    async def go_on(self, link: ShimLink, grace_seconds: float) -> None:
        """Take over a training that an earlier daemon started; returns when its tree is gone.

        One that had been told to end has `grace_seconds` from now on.
        """
        self.pid, self.status = link.hello.child_pid, link.hello.status
        self._was_told(link.hello.told_to_end)
        if self.ordered and not self.exited:
            self.hurry(0.0 if self.killed else grace_seconds)
        log.info("run_adopted", **self._facts(), pid=self.pid, fence=self.lease.fence)
        await self._see_through(link, None)

    async def clear_away(self, exit_: Exit | None) -> None:
        """End what is left of a training whose shim is gone; `exit_` as the shim wrote it."""
        if exit_ is not None:
            await self.believe(exit_)
        else:  # it was killed with its shim
            self.pid = self.pid or 0
        await self._sweep("shim_gone")

    async def believe(self, exit_: Exit) -> None:
        """Take the end from the file of a shim that was killed before it could tell of it."""
        self.pid, self.status = exit_.pid, exit_.status
        self._was_told(exit_.told_to_end)
        await self._look_for_oom()

    def _was_told(self, to_end: str) -> None:
        self.preempted = self.preempted or to_end == "preempt"
        self.killed = self.killed or to_end == "kill"

    async def _see_through(self, link: ShimLink, first: ShimTold | None) -> None:
        self._link = link
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._enforce)
            try:
                await self._talk(link, first)
            finally:
                link.closed.set()
            if not self._gone:
                await self._sweep("shim_lost")
            self._group.cancel_scope.cancel()

    async def _talk(self, link: ShimLink, first: ShimTold | None) -> None:
        for told in [*([first] if first else []), *self._owed]:
            await link.send(told)
        async for message in link.messages():
            self._heard(message)
            if isinstance(message, Exited):
                await self._look_for_oom()
            self.changed.bump()
            if self._gone:
                return

    def _heard(self, message: ShimSays) -> None:
        match message:
            case Started(pid):
                self.pid, self._started_at = pid, monotonic()
                log.info("run_started", **self._facts(), kind=self.command.kind, pid=pid,
                         fence=self.lease.fence)  # fmt: skip
            case StartFailed(error, exit_code):
                self.error, self.status, self._gone = error, exit_code << 8, True
                log.error("run_start_failed", **self._facts(), error=error)
            case Exited(status):
                self.status, self._exited_at = status, monotonic()
                self.agent.run_ended.set()
                self._end_began()
                log.info("run_exited", **self._facts(), pid=self.pid, **how(status))
            case TreeGone(killed):
                self._gone = True
                log.info("tree_gone", **self._facts(), killed=killed)
            case SignalSent(signum, origin):
                log.info("signal_sent", **self._facts(), pid=self.pid,
                         signal=signal_name(signum), origin=origin)  # fmt: skip
            case Hello():
                pass

    async def _enforce(self) -> None:
        """Wait for the deadline, however it moves, then end the tree."""
        while self._kill_at is None or self._kill_at > monotonic():
            pause = None if self._kill_at is None else self._kill_at - monotonic()
            with anyio.move_on_after(pause):
                await self.changed.wait()
        self.killed = not self.exited
        log.warning("tree_killed", **self._facts(), pid=self.pid, fenced=self.fenced)
        self._tell(KillTree())
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
        self._gone = True
        if self.stuck:
            log.info("slot_clean", **self._facts(), pids=self.stuck)
            self.stuck = []
        log.warning("tree_swept", **self._facts(), killed=killed, reason=why)

    def _cannot_be_killed(self, pids: list[int]) -> None:
        self.stuck = pids
        log.error("slot_dirty", **self._facts(), pids=pids)
        self.changed.bump()

    async def _look_for_oom(self) -> None:
        """Ask the kernel at once: its count of the whole node proves something only for moments."""
        signum = self.ending(None).signal
        find = self._kernel.out_of_memory
        self.oom = await anyio.to_thread.run_sync(find, self.claim, signum, self.pid or 0)

    async def look(self) -> None:
        """Notice that the main process was stopped, or goes on."""
        if self.pid is None or self.exited:
            return
        frozen = await anyio.to_thread.run_sync(tree.state_of, self.pid) in STOPPED
        if frozen != self.frozen:
            self.frozen = frozen
            if frozen:
                log.warning("training_frozen", **self._facts(), pid=self.pid)
            else:
                log.info("training_thawed", **self._facts(), pid=self.pid)

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

    def _end_began(self) -> None:
        if self._group is not None:
            self._group.start_soon(self._closing, self.lease.token)

    def _tell(self, message: ShimTold) -> None:
        if self._group is not None and self._link is not None:
            self._group.start_soon(self._link.send, message)
        else:  # asked before the word to start was given
            self._owed.append(message)

    def _facts(self) -> dict[str, object]:
        return {"slot": self.slot, "run_id": self.run_id}


def how(status: int) -> dict[str, object]:
    """A wait status in words: exit code or name of the signal."""
    if os.WIFSIGNALED(status):
        return {"signal": signal_name(os.WTERMSIG(status))}
    return {"exit_code": os.waitstatus_to_exitcode(status)}
