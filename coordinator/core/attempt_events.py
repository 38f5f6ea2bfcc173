"""What can happen to an attempt at a run, and what it can ask for: events in, actions out.

Owns the records only; `attempt.step` says what becomes of them.
"""

from dataclasses import dataclass

from coordinator.core.shim_protocol import (
    Exited,
    Go,
    Hello,
    ShimTold,
    SignalSent,
    Started,
    StartFailed,
    TreeGone,
)


# --- events; besides these, what the shim says ----------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begin:
    """The word to start is given."""

    go: Go


@dataclass(frozen=True, slots=True)
class Resumed:
    """The shim of a training that an earlier daemon started has come back."""

    hello: Hello
    grace_seconds: float
    """For one that had been told to end: its grace begins anew."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """It is to save and end, and has `grace_seconds` for that."""

    signum: int
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Signal:
    """An operator's signal for the main process; `once`: not if it had that signal before."""

    signum: int
    once: bool


@dataclass(frozen=True, slots=True)
class Hurry:
    """It has at most `seconds` more."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fence:
    """Another holder exists: it must go at once, with no word to the server."""


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time that it had is over."""


@dataclass(frozen=True, slots=True)
class Believed:
    """The shim was killed before it could tell of the end, and had written it down."""

    pid: int
    status: int
    told_to_end: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """The shim is gone and has written nothing down: the training was killed with it."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Every process of the tree was looked for and killed, without the shim's help."""


@dataclass(frozen=True, slots=True)
class CannotKill:
    """These processes do not die of SIGKILL."""

    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The kernel has killed it to get memory back."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The main process was seen stopped (state T of proc(5)), or seen to go on again."""

    stopped: bool


ShimEvent = Started | StartFailed | Exited | TreeGone | SignalSent | Hello
Event = (Begin | Resumed | Preempt | Signal | Hurry | Fence | DeadlineReached | Believed | Vanished
         | Swept | CannotKill | OutOfMemory | Stopped | ShimEvent)  # fmt: skip


# --- actions --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Tell:
    """Say this to the shim."""

    message: ShimTold


@dataclass(frozen=True, slots=True)
class AskWorkers:
    """Signal each worker of the launcher `pid`; the launcher itself, if it has none yet."""

    pid: int
    signum: int


@dataclass(frozen=True, slots=True)
class MarkClosing:
    """Say in Redis that the end has begun, so that other claims of this run wait for it."""


@dataclass(frozen=True, slots=True)
class LookForOom:
    """Ask the kernel at once: its count of the whole node proves something only for moments."""


@dataclass(frozen=True, slots=True)
class KillEverything:
    """SIGKILL to the whole tree: by the shim, by the control group, in the end by ourselves."""


Action = Tell | AskWorkers | MarkClosing | LookForOom | KillEverything
