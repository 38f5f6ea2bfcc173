"""Messages on the control socket, between coordinatorctl and the daemon.

Owns their shape. Control requests are POSTed as one JSON object to `/v1/command` over HTTP on the
control socket; `/v1/events` and `/v1/logs` answer with a stream of JSON lines. Unknown fields are
rejected in requests (to catch typos) and ignored in answers (so that an older client can read a
newer daemon).
"""

from typing import Any, Literal

import msgspec

from coordinator.core.breaker import BreakerView
from coordinator.core.model import CommandKind, DownMode, NodeState, Outcome, SlotState

PROTOCOL_VERSION = 1


# --- control: requests ----------------------------------------------------------------------------
class Request(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """A request of coordinatorctl."""


class GetStatus(Request, frozen=True, tag="status"):
    """Answered with a `StatusView`."""


class Scale(Request, frozen=True, tag="scale"):
    """Change the number of slots: `target` is "8", "+2" or "-1"; `down`: how slots are removed."""

    target: str
    down: DownMode = DownMode.DRAIN


class Drain(Request, frozen=True, tag="drain"):
    """Finish running trainings, take no new work."""


class Undrain(Request, frozen=True, tag="undrain"):
    """Take work again after `Drain` or `Preempt`."""


class Pause(Request, frozen=True, tag="pause"):
    """Stop claiming; running trainings continue."""


class Resume(Request, frozen=True, tag="resume"):
    """Claim again after `Pause`, and close the breakers; `run_id`: only end its quarantine."""

    run_id: str | None = None


class Preempt(Request, frozen=True, tag="preempt"):
    """Graceful signal, grace, SIGKILL. Without `target` the whole node, which stays drained."""

    target: str | None = None
    grace_seconds: float | None = None


class Signal(Request, frozen=True, tag="signal"):
    """Send signal `signal` ("TERM", "SIGUSR1", "10") to the main process of `target`.

    `target` is a slot number, a run ID or "all".
    """

    signal: str
    target: str


class Stop(Request, frozen=True, tag="stop"):
    """Stop the daemon. `down` says what happens to running trainings."""

    down: DownMode = DownMode.PREEMPT


class GetRuns(Request, frozen=True, tag="runs"):
    """Answered with a list of `RunView`, newest first; `limit` 0 means all."""

    limit: int = 50
    run_id: str | None = None
    """Only the stays of this run, on all nodes."""


class GetLeases(Request, frozen=True, tag="leases"):
    """Answered with a list of `LeaseView` over all nodes of the sweep."""


class GetLease(Request, frozen=True, tag="lease"):
    """Answered with the `cluster.LeaseDetailView` of one run."""

    run_id: str


class ReleaseLease(Request, frozen=True, tag="release_lease"):
    """Release a lease whose holder is gone, if its fencing token is still `fence`.

    Refused while a holder renews it, unless `force`.
    """

    run_id: str
    fence: int
    force: bool = False


class StealLease(Request, frozen=True, tag="steal_lease"):
    """Make the holder stop and give its run back, if the fencing token is still `fence`.

    `to`: the node for which the run is reserved.
    """

    run_id: str
    fence: int
    to: str | None = None


class GetNodes(Request, frozen=True, tag="nodes"):
    """Answered with a list of `cluster.NodeView`: every node seen within a day."""


class ChangeSweep(Request, frozen=True, tag="sweep"):
    """Like `wandb sweep --VERB`; a graceful cancel gives trainings here `grace_seconds` first."""

    verb: Literal["pause", "resume", "stop", "cancel"]
    graceful: bool | None = None
    grace_seconds: float | None = None


LeaseRequest = GetLeases | GetLease | ReleaseLease | StealLease | GetNodes
RequestUnion = (
    GetStatus
    | Scale
    | Drain
    | Undrain
    | Pause
    | Resume
    | Preempt
    | Signal
    | Stop
    | GetRuns
    | ChangeSweep
    | LeaseRequest
)


# --- control: answers -----------------------------------------------------------------------------
class SlotView(msgspec.Struct, frozen=True):
    """One slot; `pid` is the main training process, `since` the UTC time of the last change."""

    slot: int
    state: SlotState
    run_id: str | None
    pid: int | None
    agent_pid: int | None
    gpus: list[str]
    since: str
    draining: bool = False


class RedisView(msgspec.Struct, frozen=True):
    """`state` is "ok" or "degraded"; `detail` says why; `url` has no password."""

    state: str
    url: str
    embedded: bool
    detail: str = ""
    leases_held: int = 0


class UpstreamView(msgspec.Struct, frozen=True):
    """The W&B server; `state` is "ok", "degraded" or "unknown"."""

    state: str
    url: str
    sweep_state: str
    detail: str = ""


class AgentStartView(msgspec.Struct, frozen=True):
    """How agents are started; `way` is "fork" or "exec", `detail` says why they are not forked."""

    way: str
    detail: str = ""


class StatusView(msgspec.Struct, frozen=True):
    """The answer to `GetStatus`: documented in docs/control.md, changed only by adding fields."""

    node: str
    sweep: str
    state: NodeState
    desired_slots: int
    slots: list[SlotView]
    warm_agents: int
    redis: RedisView
    upstream: UpstreamView
    version: str
    pid: int
    started: str
    degraded: list[str]
    """Reasons, empty if there is none; `coordinatorctl status` exits 5 if there is one."""
    protocol: int = PROTOCOL_VERSION
    breakers: list[BreakerView] = []
    """Breakers that are not closed."""
    agent_start: AgentStartView = AgentStartView("exec")


class RunView(msgspec.Struct, frozen=True):
    """One stay of a run on this node; a run that is resumed here has one for each stay."""

    run_id: str
    slot: int
    kind: CommandKind
    node: str
    outcome: Outcome | None
    exit_code: int | None
    signal: str | None
    """Name of the signal that ended the main process, if one did."""
    started: str
    ended: str | None
    pid: int | None
    fence: int | None
    detail: str = ""
    server_state: str | None = None


class LeaseView(msgspec.Struct, frozen=True):
    """One lease of the sweep, the same on all nodes."""

    run_id: str
    owner: str
    """Node name of the holder."""
    slot: int | None
    fence: int
    state: str
    """held, expired (past the deadline, in its grace), claimable, freed (by `steal`), released."""
    kind: CommandKind
    age_seconds: float
    expires_in_seconds: float


class LogLine(msgspec.Struct, frozen=True):
    """One line of a training's output, without its newline; sent by `/v1/logs`."""

    slot: int | None
    run_id: str | None
    line: str


class Done(msgspec.Struct, frozen=True, tag_field="answer", tag="done"):
    """The request was executed; `data` is the requested view, if any."""

    message: str = ""
    data: Any = None


class Refused(msgspec.Struct, frozen=True, tag_field="answer", tag="refused"):
    """The request is valid but not possible now (exit code 6)."""

    message: str


class Invalid(msgspec.Struct, frozen=True, tag_field="answer", tag="invalid"):
    """The request is invalid: a bad signal name, an unknown target (exit code 2)."""

    message: str


class Failed(msgspec.Struct, frozen=True, tag_field="answer", tag="failed"):
    """The request failed (exit code 1)."""

    message: str


Answer = Done | Refused | Invalid | Failed
