"""One `wandb agent --count 1` and where it stands.

Owns the freezing of an agent that waits: its heartbeat is held for a while, then answered "nothing"
and the agent is stopped (SIGSTOP) in its 5 s sleep, so that it can be woken at any time and asks
again at once. An agent that has a run is never frozen.
"""

import enum
import signal
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio

from coordinator.core import wire
from coordinator.core.wire import Orders, TrainCommand
from coordinator.gateway.desk import IdleBeat

if TYPE_CHECKING:
    from coordinator.process.spawn import Child

HOLD_SECONDS = 20.0
"""wandb 0.31 drops a heartbeat that is unanswered for 30 s; older ones wait 60 s."""
FREEZE_AFTER_SECONDS = 1.0
"""Into the agent's 5 s sleep, when it has certainly begun."""

REPORT_SECONDS = 5.0
"""Between two heartbeats of an agent with a run, as wandb's own POLL_INTERVAL."""


class AgentState(enum.StrEnum):
    """Life of an agent; `frozen` is a second thing."""

    STARTING = "starting"
    IDLE = "idle"
    RESERVED = "reserved"
    BUSY = "busy"
    GONE = "gone"


READY = frozenset({AgentState.STARTING, AgentState.IDLE, AgentState.RESERVED})


class Agent:
    """See the module; `number` is for people, `token` is the secret in its gateway address."""

    def __init__(self, number: int, token: str, output: Path) -> None:
        self.number = number
        self.token = token
        self.output = output
        self.state = AgentState.STARTING
        self.child: Child | None = None
        self.server_id: str | None = None
        self.beat: IdleBeat | None = None
        self.run_id: str | None = None
        self.guest = False
        """Known to us only: the server takes no agents on for a sweep that is over."""
        self.unknown = False
        """The server has lost it: it can no longer ask for work."""
        self.exit_ordered = False
        """The server has sent it away while it had a run."""
        self.cancelled_runs: set[str] = set()
        """Runs that the server told this agent to stop."""
        self.dismissed = False
        self.excused = False
        """Should it end early, that is W&B's doing or the disk's, not the node's."""
        self.gone = anyio.Event()
        self.run_ended = anyio.Event()
        """Its training's main process has ended, which it notices at its next poll."""
        self._reported_at = 0.0
        self._old_pid: int | None = None
        self._mail: bytes | None = None
        self._mail_came = anyio.Event()
        self._held = False
        self._frozen = False

    @property
    def pid(self) -> int | None:
        """Process ID once started; of an agent that died with an earlier daemon, its old one."""
        return self.child.pid if self.child else self._old_pid

    def adopt(self, pid: int | None, run_id: str) -> None:
        """Stand for an agent that is gone, whose training goes on."""
        self.state, self._old_pid, self.run_id = AgentState.GONE, pid, run_id
        self.gone.set()

    async def hold(self, beat: IdleBeat) -> bytes:
        """Answer one idle heartbeat: with the command that comes while we hold it, or nothing."""
        self.beat, self._held = beat, True
        try:
            with anyio.move_on_after(HOLD_SECONDS):
                await self._mail_came.wait()
        finally:
            self._held = False
        if self._mail is None:
            return wire.heartbeat_answer(beat.agent_id, [])
        mail, self._mail = self._mail, None
        self._mail_came = anyio.Event()
        return mail

    def freeze(self) -> None:
        """Stop the process if it sleeps between two heartbeats without a run."""
        if self.child is None or self.child.eager:
            return
        if self.state in READY and not self._held and self._mail is None:
            self.child.send(signal.SIGSTOP)
            self._frozen = True

    def thaw(self) -> None:
        """Let a frozen process go on."""
        if self.child and self._frozen:
            self.child.send(signal.SIGCONT)
            self._frozen = False

    def give(self, command: TrainCommand) -> None:
        """Hand the agent a run: it is answered now, or wakes and asks."""
        self.state, self.run_id = AgentState.BUSY, command.run_id
        self._reported_at = monotonic()
        self._post([command.raw])

    def _post(self, commands: list[Mapping[str, Any]]) -> None:
        name = self.beat.agent_id if self.beat else ""
        self._mail = wire.heartbeat_answer(name, commands)
        self._mail_came.set()
        self.thaw()

    async def due(self) -> bool:
        """Wait until the server is to hear that the run goes on; False when it has ended.

        A forked agent polls its training many times a second and asks the server each time.
        """
        with anyio.move_on_after(self._reported_at + REPORT_SECONDS - monotonic()):
            await self.run_ended.wait()
        self._reported_at = monotonic()
        return not self.run_ended.is_set()

    def ordered(self, orders: Orders) -> None:
        """Take note of what the server ordered while a run lives here."""
        self.cancelled_runs.update(orders.stop)
        if orders.exit and self.run_id:
            self.exit_ordered = True
            self.cancelled_runs.add(self.run_id)
