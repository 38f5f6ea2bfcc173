"""The frozen configuration object: its keys, defaults and limits.

Owns what each key means. Reads nothing: `load.py` fills it in. Every duration is in seconds.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from coordinator.core.cloud import Cloud, Response
from coordinator.core.model import AgentStart, Outcome
from coordinator.core.presets import Preset, Target
from coordinator.core.rank import RankGate
from coordinator.core.rescue import RESCUED_BY_DEFAULT

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Failures = Annotated[int, Meta(ge=1, le=1000)]
Burst = Annotated[int, Meta(ge=1, le=10_000)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the configuration file."""


class Sweep(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[sweep]: what to train and with which wandb."""

    path: str = ""
    """ENTITY/PROJECT/SWEEP_ID."""
    workdir: str = "."
    """Directory in which agents and trainings run."""
    wandb: str = ""
    """The wandb executable; empty: the one on PATH, else the one next to this Python."""
    env: dict[str, str] = {}
    """Added to the environment of agents and trainings."""
    resume: Literal["allow", "must", "never", "auto", "off"] = "allow"
    """WANDB_RESUME for resumed runs; "off" does not set the variable."""
    resume_sweep: bool = False
    """Resume a sweep whose search is exhausted while some of its runs wait to run again."""
    poll_seconds: Positive = 5.0
    """Pause between two requests for work when the server had none (wandb's agent: 5)."""
    connect_seconds: NotNegative = 60.0
    """How long the daemon waits at start for an unreachable W&B server."""


class Pool(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[pool]: slots and the agents that serve them."""

    slots: int | Literal["auto"] = "auto"
    """Number of concurrent trainings; "auto": one for each `gpus_per_slot` GPUs, 1 without GPUs."""
    gpus_per_slot: Annotated[int, Meta(ge=0)] = 1
    """GPUs of each slot, set with CUDA_VISIBLE_DEVICES; 0 does not set the variable."""
    agent_start: AgentStart = AgentStart.AUTO
    """Fork agents from a process that has imported wandb, or execute wandb for each."""
    warm_agents: Annotated[int, Meta(ge=0, le=64)] | Literal["auto"] = "auto"
    """Agents kept ready in addition to those that free slots need; "auto": 1 (95 MB), or, if agents
    are forked, one for each slot that has a run (12 MB each)."""
    linger_seconds: NotNegative = 10.0
    """How long other processes may outlive a training's main process before they are killed."""
    start_seconds: Positive = 60.0
    """How long an agent may take to start a run that it was given."""
    idle_timeout_seconds: NotNegative = 0.0
    """Exit 0 once no slot has had a run for this long (batch jobs); 0: never."""


class Redis(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[redis]: leases. The relations between these numbers are checked when they are used."""

    url: str = "embedded"
    """The forms are in docs/leases.md; "embedded": a private server; "off": no leases (unsafe)."""
    ttl_seconds: Positive = 60.0
    renew_seconds: Positive = 10.0
    grace_seconds: Positive = 30.0
    """Added to the TTL before others can take the lease of a silent holder."""
    handoff_seconds: NotNegative = 30.0
    """How long a claim waits for a holder that is shutting down."""
    race_window_seconds: NotNegative = 30.0
    """If the lease is younger than this, a second claim is a race and is dropped at once."""
    on_lease_loss: Literal["continue", "strict"] = "continue"
    timeout_seconds: Positive = 2.0
    stop_budget_seconds: Positive = 10.0


class Preemption(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[preemption]: notices and what they do to trainings."""

    preset: Preset = Preset.PYTHON
    """What the sweep's command starts, which determines how it is asked to save."""
    signals: dict[str, str] = {}
    """Maps received signals to signals for trainings; the preset maps the rest."""
    target: Target = Target.PRESET
    """Who gets it: the main process, or each worker of a launcher."""
    grace_seconds: NotNegative = 30.0
    """Time between the graceful signal and SIGKILL to the whole tree."""
    storm_seconds: NotNegative = 2.0
    """Notices within this time count as one (SLURM and systemd send several)."""
    notices: list[Cloud] = []
    """Clouds whose metadata service is watched; signals are always notices."""
    on_risk: Response = Response.DRAIN
    """Reaction when a cloud says that it may take the machine, but not when."""
    acknowledge: bool = False
    """Tell Azure to start its event as soon as nothing runs here any more."""
    endpoints: dict[str, str] = {}
    """Addresses of metadata services by cloud, if not the usual ones."""
    graceful_cancel: bool = False
    """When the sweep is cancelled: graceful signal and grace first, instead of SIGKILL at once."""


class Rescue(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[rescue]: runs that W&B will not hand out again."""

    enabled: bool = True
    """False: plain W&B behavior."""
    on: list[Outcome] = msgspec.field(default_factory=lambda: list(RESCUED_BY_DEFAULT))
    """Outcomes after which a run is trained again."""
    max_attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    """New attempts for one run over all nodes; then it is given up, with an event."""
    backoff_seconds: NotNegative = 10.0
    """Pause before the first new attempt; doubled for each further one."""


class Breaker(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[breaker]: stops a bad slot, node, sweep or run from burning run after run."""

    enabled: bool = True
    failures: Failures = 5
    """Failures in a row on this node that open its breaker."""
    slot_failures: Failures = 3
    """The same for one slot, while other slots of the node are sound."""
    sweep_failures: Failures = 20
    """The same over all nodes, at most `failures` counted per node."""
    run_failures: Failures = 3
    """Failures in a row of one resumed run after which it is quarantined."""
    early_seconds: NotNegative = 3.0
    """A failure counts before `wandb.init`, or if the training ended within this time."""
    sound_seconds: Positive = 60.0
    """A training that has run this long proves that its slot and node are sound."""
    cooldown_seconds: Positive = 30.0
    """How long a breaker stays open before a probe; doubled each time the probe fails."""
    max_cooldown_seconds: Positive = 600.0
    min_free_bytes: Annotated[int, Meta(ge=0)] = 50_000_000
    """With less free space on the disk of state or working directory, nothing is claimed."""


class Pacing(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[pacing]: limits how fast agents start and work is requested; bursts are free."""

    agent_starts_per_second: Positive = 10.0
    agent_start_burst: Burst = 64
    claims_per_second: Positive = 5.0
    claim_burst: Burst = 50
    sweep_claims_per_second: Positive = 20.0
    """For all nodes that share the Redis."""
    sweep_claim_burst: Burst = 200


class Control(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[control]: the socket of coordinatorctl."""

    socket: str = ""
    """Path; empty: control.sock in the state directory."""
    group: str = ""
    """Members of this group can use the socket too; empty: only the daemon's user and root."""


class Events(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[events]: structured lifecycle events."""

    file: str = ""
    """Path; empty: events.jsonl in the state directory; "off": none."""
    format: Literal["auto", "json", "console"] = "auto"
    max_bytes: Annotated[int, Meta(ge=10_000)] = 10_000_000
    """The file is rotated at this size."""
    keep: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Number of rotated files to keep."""


class Config(Section, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of it; `[section] key` in the file, `COORDINATOR_SECTION_KEY` in the environment."""

    node: str = ""
    """Name of this node, unique among those that share a Redis; empty: the host name."""
    state_dir: str = ""
    """Directory for state, logs and sockets; empty: see docs/configuration.md."""
    until_done: bool = False
    """Exit 0 once the sweep has no more work and every slot is idle."""
    rank_gate: RankGate = RankGate.OFF
    """Under srun: which tasks run; the others exit 0 at once."""
    sweep: Sweep = Sweep()
    pool: Pool = Pool()
    redis: Redis = Redis()
    preemption: Preemption = Preemption()
    rescue: Rescue = Rescue()
    breaker: Breaker = Breaker()
    pacing: Pacing = Pacing()
    control: Control = Control()
    events: Events = Events()
