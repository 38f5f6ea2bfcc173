"""Nodes that are brought to a phase of a run, hit there, and seen to their end.

Owns the way to each phase and the kills. Nothing in the product is changed for it: phases are held
by files that the training looks at, and by stopping (SIGSTOP) who would leave them.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.killmatrix.cells import Cell, Phase, Victim
from tests.support.emulator import Emulator, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.node import Node

TRAINING = Path(__file__).with_name("training.py")
PATIENCE = 300.0
FLAGS = ("--until-done", "--set", "sweep.poll_seconds=0.3", "--set", "rescue.backoff_seconds=0.1",
         "--set", "pool.linger_seconds=60")  # fmt: skip
HANDED_SECONDS = 0.3
"""From the grant of a lease until its command lies in the agent's socket; and from a shim's start
until its first word lies in the daemon's."""
GONE_SECONDS = 5.0


class MissedError(Exception):
    """The phase was over, or the victim gone, before our kill: this shows nothing."""


@dataclass
class Stage:
    """The server and the nodes of one play; it sees to it that killed daemons start again."""

    emulator: Emulator
    sweep: str
    nodes: list[Node]
    killed: list[Cell] = field(default_factory=list)
    hit_run: str | None = None
    """The run that was in the phase of the first kill; None while warm."""
    restarts: int = 0
    wrong: list[str] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)
    """Pids that have our SIGSTOP."""
    _our_kills: set[int] = field(default_factory=set)

    # --- daemons ------------------------------------------------------------------------------
    def start(self, *, early: bool) -> None:
        """`early`: no run is handed out before it is asked for, and there are no spare agents."""
        if early:
            self.emulator.set_sweep_state(self.sweep, "PAUSED")
        flags = ("--set", f"pool.warm_agents={0 if early else 1}")
        for node in self.nodes:
            node.flags = (*node.flags, *FLAGS, *flags)
            node.start()

    def tend(self) -> bool:
        """Start killed daemons again, as systemd would; True when all have ended by themselves."""
        for node in self.nodes:
            assert node.process is not None
            code = node.process.poll()
            if code == -signal.SIGKILL and node.process.pid in self._our_kills:
                self.restarts += 1
                node.start()
            elif code:
                raise AssertionError(f"{node.name} ended with {code}: {node.tail()[-800:]}")
        return all(node.process is not None and node.process.poll() == 0 for node in self.nodes)

    def wait(self, what: str, probe: Any) -> Any:
        """Until `probe` is true; killed daemons are started meanwhile."""

        def look() -> Any:
            self.tend()
            return probe()

        return wait_until(what, look, PATIENCE)

    # --- phases -------------------------------------------------------------------------------
    @contextmanager
    def at(self, phase: Phase, victims: set[Victim]) -> Iterator[Node]:
        """Bring a node to `phase` and keep it there; the phase is left with the context."""
        try:
            if phase.order <= Phase.WAITING.order:
                yield self._early(phase)
            else:
                yield self._with_training(phase, victims)
        finally:
            for pid in self.stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.stopped.clear()
            for gate in self.nodes[0].directory.glob("hold-*"):
                gate.unlink()
            if self.emulator.sweep(self.sweep)["state"] == "PAUSED":
                self.emulator.set_sweep_state(self.sweep, "RUNNING")

    def _early(self, phase: Phase) -> Node:
        agents = {node.name: self._asking_agent(node) for node in self.nodes}
        if phase is Phase.WARM:
            return self.nodes[0]
        granted = {node.name: len(node.events("lease_acquired")) for node in self.nodes}
        for pid in agents.values():
            self._stop(pid)
        self.emulator.set_sweep_state(self.sweep, "RUNNING")

        def claimed() -> Node | None:
            fresh = (n for n in self.nodes if len(n.events("lease_acquired")) > granted[n.name])
            return next(fresh, None)

        node: Node = self.wait("a run is claimed", claimed)
        self._is_hit(node.events("lease_acquired")[-1]["run_id"])
        time.sleep(HANDED_SECONDS)
        if phase is Phase.WAITING:
            assert node.process is not None
            self._stop(node.process.pid)
            os.kill(agents[node.name], signal.SIGCONT)
            self.wait("the shim starts", lambda: self.find(node, Victim.SHIM))
            time.sleep(HANDED_SECONDS)
        elif self.find(node, Victim.SHIM):
            raise MissedError("the agent had not stopped")
        return node

    def _asking_agent(self, node: Node) -> int:
        """The pid of an agent that waits at the desk: the server has heard of it since."""
        first: dict[str, str] = {}

        def asking() -> int | None:
            heard = {name: a["heard"] for name, a in self.agents().items()}
            pids = {event["agent"]: event["pid"] for event in node.events("agent_started")}
            for event in node.events("agent_registered"):
                name, pid = event["server_id"], pids.get(event["agent"], 0)
                began = first.setdefault(name, heard.get(name, ""))
                if pid in node.processes() and heard.get(name, "") != began:
                    return int(pid)
            return None

        found: int = self.wait(f"an agent of {node.name} asks for work", asking)
        return found

    def agents(self) -> dict[str, Any]:
        """The agents of the sweep as the server knows them."""
        agents: dict[str, Any] = self.emulator.sweep(self.sweep)["agents"]
        return agents

    def _stop(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.stopped.add(pid)

    def _with_training(self, phase: Phase, victims: set[Victim]) -> Node:
        if self.emulator.sweep(self.sweep)["state"] == "PAUSED":
            self.emulator.set_sweep_state(self.sweep, "RUNNING")
        directory = self.nodes[0].directory
        held = phase.value
        if phase is Phase.EXITING and Victim.TRAINING in victims:
            held = "finishing"  # its main process lives
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"hold-{held}").touch()
        if phase is Phase.SAVING:
            (directory / "hold-training").touch()
            record = self._held("training")
            self._node(record).ctl("preempt", str(record["run"]))
            record = self._held("saving")
        elif held == "exiting":
            record = self.wait("a main process has ended", self._ended)
        else:
            record = self._held(held)
        self._is_hit(str(record["run"]))
        return self._node(record)

    def _held(self, phase: str) -> dict[str, Any]:
        """The record of a living training that stands at `phase`."""

        def look() -> dict[str, Any] | None:
            for record in self.nodes[0].records("hold")[::-1]:
                lives = record["pid"] in self._node(record).processes()
                if record["phase"] == phase and lives:
                    return dict(record)
            return None

        return dict(self.wait(f"a training stands at {phase}", look))

    def _ended(self) -> dict[str, Any] | None:
        """A main process has ended, its daemon knows, and a process of it is left."""
        for record in self.nodes[0].records("end")[::-1]:
            node = self._node(record)
            known = any(e["pid"] == record["pid"] for e in node.events("run_exited"))
            if known and any("hold-exiting" in line for line in node.processes().values()):
                return dict(record)
        return None

    def _node(self, record: dict[str, Any]) -> Node:
        return next(node for node in self.nodes if node.name == record["node"])

    def _is_hit(self, run: str) -> None:
        if self.hit_run is None:
            self.hit_run = run

    # --- kills --------------------------------------------------------------------------------
    def find(self, node: Node, victim: Victim) -> int | None:
        """The pid of the process to kill; None when there is none."""
        if victim is Victim.DAEMON:
            return None if node.process is None else node.process.pid
        if victim is Victim.TRAINING:
            living = node.processes()
            pids = [r["pid"] for r in node.records("begin") if r["pid"] in living]
            return pids[-1] if pids else None
        mark = {Victim.AGENT: " agent --count", Victim.AGENT_SERVER: "agent_server.py",
                Victim.SHIM: "shim.py", Victim.REDIS: "redis.sock"}  # fmt: skip
        found = [pid for pid, line in node.processes().items() if mark[victim] in line]
        if victim is Victim.AGENT_SERVER:  # what it has forked bears its name for a moment
            return min(found, default=None)
        if victim is not Victim.AGENT or len(found) < 2:
            return max(found, default=None)
        return self._busy_agent(node, found)

    def _busy_agent(self, node: Node, agents: list[int]) -> int:
        """The one that has the run, as far as there is one: the shim is its child."""
        shim = self.find(node, Victim.SHIM)
        with suppress(psutil.NoSuchProcess):
            if shim is not None and psutil.Process(shim).ppid() in agents:
                return psutil.Process(shim).ppid()
        return max(agents)

    def lives(self, node: Node, pid: int) -> bool:
        """Also a daemon that has only just been forked and bears no mark yet."""
        if node.process is not None and node.process.pid == pid:
            return node.process.poll() is None
        return pid in node.processes()

    def kill(self, node: Node, cell: Cell, pid: int | None) -> None:
        """SIGKILL; raises MissedError when there was nobody to kill."""
        if pid is None or not self.lives(node, pid):
            raise MissedError(f"{cell}: there was no {cell.victim}")
        if cell.victim is Victim.DAEMON:
            self._our_kills.add(pid)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while self.lives(node, pid):
            assert time.monotonic() < deadline, f"{cell}: {pid} does not die"
            time.sleep(0.01)
        self.killed.append(cell)
