"""The backend itself: sweeps, agents, runs, and every change of their states.

Owns all tables and all rules of a sweep's life. Sans-IO: each call is given the present time, and
nothing here sleeps, reads a clock or knows HTTP. Every change is put into the history.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from coordinator.emulator import dispatch
from coordinator.emulator.records import (
    LIVE_STATES,
    OPEN_STATES,
    Agent,
    Now,
    QueueEntry,
    Run,
    RunKey,
    RunState,
    Sweep,
    SweepState,
    encode_id,
)
from coordinator.emulator.search import Search

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from coordinator.emulator.dispatch import Command
    from coordinator.emulator.faults import Behaviour
    from coordinator.emulator.history import History
    from coordinator.emulator.runs import RunBook

_ALPHABET = string.ascii_lowercase + string.digits


class BackendError(Exception):
    """A request that the server refuses: `status` is the HTTP status, the message is the user's."""

    def __init__(self, status: int, message: str) -> None:
        """Keep the status beside the message."""
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Backend:
    """Everything that the server knows."""

    book: RunBook
    behaviour: Behaviour
    history: History
    rng: random.Random
    default_entity: str = "emulator"
    starts_pending: bool = False
    projects: dict[tuple[str, str], Now] = field(default_factory=dict)
    sweeps: dict[RunKey, Sweep] = field(default_factory=dict)
    agents: dict[str, tuple[Sweep, Agent]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Hear of every end of a run."""
        self.book.on_end = self._run_ended

    @property
    def runs(self) -> dict[RunKey, Run]:
        """Every run."""
        return self.book.runs

    # --- sweeps

    def create_sweep(self, entity: str, project: str, config_yaml: str, now: Now) -> Sweep:
        """Create a sweep; raises `SearchError` when its configuration cannot be searched."""
        config = yaml.safe_load(config_yaml) or {}
        search = Search(config, random.Random(self.rng.random()))  # noqa: S311
        self.projects.setdefault((entity, project), now)
        sweep = Sweep(entity, project, self._new_id(), config, config_yaml, search, created=now)
        sweep.state = SweepState.PENDING if self.starts_pending else SweepState.RUNNING
        self.sweeps[entity, project, sweep.sweep_id] = sweep
        self.history.record(now, "sweep_created", sweep=sweep.path, state=sweep.state.value)
        return sweep

    def set_sweep_state(self, sweep: Sweep, state: SweepState, now: Now) -> None:
        """Obey `wandb sweep --pause/--resume/--stop/--cancel`; a cancel stops all runs too."""
        self._change_sweep(sweep, state, "user", now)
        if state is SweepState.CANCELED:
            for run in self.runs_of(sweep):
                run.stop_requested = run.stop_requested or run.state in LIVE_STATES

    def update_config(self, sweep: Sweep, config_yaml: str, now: Now) -> None:
        """Obey `wandb sweep --update`: the search starts over with the new configuration."""
        config = yaml.safe_load(config_yaml) or {}
        sweep.search = Search(config, random.Random(self.rng.random()))  # noqa: S311
        sweep.config, sweep.config_yaml, sweep.updated = config, config_yaml, now

    def runs_of(self, sweep: Sweep) -> Iterable[Run]:
        """The runs of a sweep, oldest first."""
        return (self.runs[sweep.entity, sweep.project, run_id] for run_id in sweep.run_ids)

    # --- agents

    def create_agent(self, sweep: Sweep, host: str, now: Now) -> Agent:
        """Register an agent; refused as W&B refuses it when the sweep is over."""
        if sweep.state not in OPEN_STATES:
            raise BackendError(400, f"Sweep {sweep.path} is not running")
        agent = Agent(encode_id("Agent", self._new_id()), host, created=now, heard=now)
        sweep.agents[agent.agent_id] = agent
        self.agents[agent.agent_id] = (sweep, agent)
        self.history.record(now, "agent_created", agent=agent.agent_id, host=host, sweep=sweep.path)
        return agent

    def heartbeat(self, agent_id: str, holding: Collection[str], now: Now) -> list[Command]:
        """What an agent is to do next; raises `BackendError` 404 for an unknown agent."""
        if agent_id not in self.agents:
            raise BackendError(404, f"agent {agent_id} not found")
        sweep, agent = self.agents[agent_id]
        agent.heard, agent.holding = now, frozenset(holding)
        if sweep.state is SweepState.CANCELED:
            commands: list[Command] = [{"type": "exit"}]
        elif holding:
            commands = [
                {"type": "stop", "run_id": run_id} for run_id in self._stopped(sweep, holding)
            ]
        else:
            commands = self._idle_commands(sweep, agent, now)
        for command in commands:
            if command["type"] in {"stop", "exit"}:
                self._note_command(now, agent, command, duplicate=False)
        return commands

    def _stopped(self, sweep: Sweep, holding: Collection[str]) -> list[str]:
        held = ((sweep.entity, sweep.project, run_id) for run_id in holding)
        found = (self.runs[key] for key in held if key in self.runs)
        return [run.run_id for run in found if run.stop_requested]

    def _idle_commands(self, sweep: Sweep, agent: Agent, now: Now) -> list[Command]:
        if sweep.state is SweepState.PENDING:
            self._change_sweep(sweep, SweepState.RUNNING, "first heartbeat", now)
        if sweep.state is SweepState.RUNNING:
            entry = dispatch.next_entry(sweep, agent.agent_id, now.monotonic, self.behaviour)
            entry = entry or self._new_configuration(sweep, now)
            if entry is not None:
                command = self._hand_out(sweep, agent, entry, now)
                self._settle(sweep, now)
                return [command]
            self._settle(sweep, now)
        return [] if sweep.state in OPEN_STATES else [{"type": "exit"}]

    def _new_configuration(self, sweep: Sweep, now: Now) -> QueueEntry | None:
        point = sweep.returned.pop(0) if sweep.returned else sweep.search.next()
        if point is None:
            return None
        run = Run(sweep.entity, sweep.project, self._new_id(), created=now, args=point)
        run.sweep_id = sweep.sweep_id
        self.runs[run.key] = run
        sweep.run_ids.append(run.run_id)
        entry = QueueEntry(run.run_id, "run", limit=2 if self.behaviour.racy_new else 1)
        sweep.queue.append(entry)
        return entry

    def _hand_out(self, sweep: Sweep, agent: Agent, entry: QueueEntry, now: Now) -> Command:
        run = self.runs[sweep.entity, sweep.project, entry.run_id]
        duplicate = dispatch.mark_handed(
            sweep, entry, agent.agent_id, now.monotonic, self.behaviour
        )
        run.hand_outs += 1
        run.duplicates += duplicate
        agent.claims += 1
        if not duplicate:
            run.agent_id = agent.agent_id
            self.book.change(run, RunState.RESERVED, "claimed", now)
        command = dispatch.command_for(entry, run, sweep, self.behaviour)
        self._note_command(now, agent, command, duplicate=duplicate)
        return command

    def _note_command(self, now: Now, agent: Agent, command: Command, *, duplicate: bool) -> None:
        self.history.record(
            now,
            "command",
            type=command["type"],
            run=command.get("run_id"),
            agent=agent.agent_id,
            host=agent.host,
            duplicate=duplicate,
        )

    # --- runs

    def init_run(self, key: RunKey, sweep_id: str | None, now: Now) -> tuple[Run, bool]:
        """A training process starts a run, perhaps one of a sweep that handed it out."""
        entity, project, run_id = key
        self.projects.setdefault((entity, project), now)
        run, inserted = self.book.initialise(key, now)
        sweep = self.sweeps.get((entity, project, sweep_id or ""))
        if sweep is not None and run.sweep_id is None:
            run.sweep_id = sweep_id
            sweep.run_ids.append(run_id)
        return run, inserted

    def expire(self, peers: Collection[str], now: Now) -> None:
        """Let time pass for silent runs and unused claims; `peers` are the open connections."""
        for run in self.book.expire(peers, now):
            self._lapse(run, now)

    def _lapse(self, run: Run, now: Now) -> None:
        """Free the configuration, or the place in the queue, of a claim that came to nothing."""
        sweep = self.sweep_of(run)
        if run.exit_code == 0:  # it had finished while it stood in the queue
            self.book.change(run, RunState.FINISHED, "reservation lapsed", now)
        elif run.visible:
            self.book.change(run, RunState.PREEMPTED, "reservation lapsed", now)
        else:
            self.book.change(run, RunState.ABANDONED, "reservation lapsed", now)
            if sweep is not None:
                sweep.returned.append(run.args)
        self._run_ended(run, now)

    def _run_ended(self, run: Run, now: Now) -> None:
        sweep = self.sweep_of(run)
        if sweep is None:
            return
        if run.state is RunState.PREEMPTED:
            sweep.queue = [entry for entry in sweep.queue if entry.run_id != run.run_id]
            sweep.queue.append(QueueEntry(run.run_id, "resume"))
            self.history.record(now, "run_queued", run=run.run_id, sweep=sweep.path)
        self._settle(sweep, now)

    def sweep_of(self, run: Run) -> Sweep | None:
        """The sweep of a run, if it has one."""
        if run.sweep_id is None:
            return None
        return self.sweeps.get((run.entity, run.project, run.sweep_id))

    def forget(self, run: Run) -> None:
        """Delete a run and all that refers to it."""
        del self.runs[run.key]
        sweep = self.sweep_of(run)
        if sweep is not None:
            sweep.run_ids.remove(run.run_id)
            sweep.queue = [entry for entry in sweep.queue if entry.run_id != run.run_id]

    # --- changes of state

    def _settle(self, sweep: Sweep, now: Now) -> None:
        """Finish a sweep that has nothing left to hand out and nothing alive."""
        if sweep.state is not SweepState.RUNNING or not sweep.search.exhausted or sweep.returned:
            return
        if any(dispatch.is_waiting(entry) for entry in sweep.queue):
            return
        if self.behaviour.early_finish or not any(
            r.state in LIVE_STATES for r in self.runs_of(sweep)
        ):
            self._change_sweep(sweep, SweepState.FINISHED, "exhausted", now)

    def _change_sweep(self, sweep: Sweep, state: SweepState, cause: str, now: Now) -> None:
        if sweep.state is state:
            return
        before, sweep.state, sweep.updated = sweep.state, state, now
        sweep.ended_by = cause if state not in OPEN_STATES else None
        self.history.record(
            now, "sweep_state", sweep=sweep.path, state=state.value, was=before.value, cause=cause
        )

    def _new_id(self) -> str:
        return "".join(self.rng.choices(_ALPHABET, k=8))
