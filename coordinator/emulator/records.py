"""The things a backend knows: projects, sweeps, agents, runs and the entries of a run queue.

Owns their fields, their states and the names under which the API shows them. Holds no rule about
when a state changes (that is `lifecycle` and `state`) and never looks at a clock.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.emulator.search import Search

Config = dict[str, Any]
RunKey = tuple[str, str, str]
"""Entity, project and run ID."""


class RunState(StrEnum):
    """States of a run. RESERVED (claimed, not yet initialised) is invisible to the API."""

    RESERVED = "reserved"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CRASHED = "crashed"
    KILLED = "killed"
    PREEMPTED = "preempted"
    ABANDONED = "abandoned"


class SweepState(StrEnum):
    """States of a sweep as the API shows them; a stopped sweep is FINISHED there too."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"


LIVE_STATES = frozenset({RunState.RESERVED, RunState.RUNNING})
OPEN_STATES = frozenset({SweepState.PENDING, SweepState.RUNNING, SweepState.PAUSED})


@dataclass(frozen=True, slots=True)
class Now:
    """The present: monotonic seconds for durations, epoch seconds for what people read."""

    monotonic: float
    wall: float

    @property
    def iso(self) -> str:
        """The wall time as the API writes it."""
        return datetime.fromtimestamp(self.wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Run:
    """One run; `args` is what a sweep chose for it, `config` what its training process reported.

    `peers` are the connections and `writers` the wandb-core processes known since its last start.
    """

    entity: str
    project: str
    run_id: str
    created: Now
    sweep_id: str | None = None
    args: Config = field(default_factory=dict)
    state: RunState = RunState.RESERVED
    changed_at: float = 0.0
    heard_at: float = 0.0
    posted: Now | None = None
    exit_code: int | None = None
    preempting: bool = False
    stop_requested: bool = False
    agent_id: str | None = None
    hand_outs: int = 0
    duplicates: int = 0
    inits: int = 0
    peers: set[str] = field(default_factory=set)
    writers: frozenset[str] = frozenset()
    config: Config = field(default_factory=dict)
    summary: Config = field(default_factory=dict)
    attributes: Config = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    rows_received: int = 0
    log_lines: int = 0
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def key(self) -> RunKey:
        """Where the run is kept."""
        return (self.entity, self.project, self.run_id)

    @property
    def storage_id(self) -> str:
        """The opaque ID that GraphQL calls `id`."""
        return encode_id("Run", self.run_id, self.project, self.entity)

    @property
    def visible(self) -> bool:
        """Whether the API knows the run: from its first `wandb.init()` on."""
        return self.inits > 0

    @property
    def shown_state(self) -> str:
        """The state as `wandb.Api().run(...).state` shows it."""
        if self.state is RunState.RUNNING and self.preempting:
            return "preempting"
        return self.state.value


@dataclass(slots=True)
class Agent:
    """One registered agent of a sweep; `holding` is the runs of its last heartbeat."""

    agent_id: str
    host: str
    created: Now
    heard: Now
    holding: frozenset[str] = frozenset()
    claims: int = 0


@dataclass(slots=True)
class QueueEntry:
    """A run that waits for an idle agent, and whom it has already been given to.

    `limit` bounds the hand-outs of one entry (None: as many as a racy window brings).
    """

    run_id: str
    command: str
    first_handed_at: float | None = None
    handed_to: set[str] = field(default_factory=set)
    limit: int | None = None


@dataclass(slots=True)
class Sweep:
    """One sweep: its configuration, its search, its queue of runs and its agents."""

    entity: str
    project: str
    sweep_id: str
    config: Config
    config_yaml: str
    search: Search
    created: Now
    state: SweepState = SweepState.RUNNING
    ended_by: str | None = None
    updated: Now | None = None
    returned: list[Config] = field(default_factory=list)
    queue: list[QueueEntry] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)
    agents: dict[str, Agent] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Entity, project and sweep ID, as people type it."""
        return f"{self.entity}/{self.project}/{self.sweep_id}"

    @property
    def storage_id(self) -> str:
        """The opaque ID that GraphQL calls `id`."""
        return encode_id("Sweep", self.sweep_id, self.project, self.entity)


def encode_id(kind: str, *parts: str) -> str:
    """An opaque ID in the manner of the real server: base64 of `Kind:v1:…`."""
    return base64.b64encode(":".join((kind, "v1", *parts)).encode()).decode()


def decode_id(opaque: str) -> list[str] | None:
    """The parts of an opaque ID without its kind, or None if it is not one of ours."""
    try:
        kind, version, *parts = base64.b64decode(opaque, validate=True).decode().split(":")
    except ValueError:
        return None
    return parts if kind and version == "v1" else None
