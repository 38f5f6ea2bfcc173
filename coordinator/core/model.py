"""The types that all layers share: slots, runs, outcomes, sweeps.

Owns only these types. It must never decide anything and never import another module of ours.
"""

import enum
import re
from dataclasses import dataclass


class SlotState(enum.StrEnum):
    """The state of a slot. Its *desired* state is kept elsewhere (`reconcile.Desired`)."""

    IDLE = "idle"
    """No run and no claim."""
    CLAIMING = "claiming"
    """Asking for work: it waits for an agent, the server or a lease."""
    STARTING = "starting"
    """This node has the lease and an agent has the command; its shim has not reported yet."""
    RUNNING = "running"
    """The training process is running."""
    STOPPING = "stopping"
    """A graceful signal was sent and the grace is running."""
    CLOSING = "closing"
    """The main process has exited; processes that it started are still alive."""
    DIRTY = "dirty"
    """A process of the run does not end after SIGKILL (state D); the slot waits for its end."""


class Outcome(enum.StrEnum):
    """Why a run's stay in a slot ended. docs/outcomes.md describes causes and consequences."""

    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    PREEMPT_LOST = "preempt_lost"
    CRASHED = "crashed"
    OOM = "oom"
    CANCELLED = "cancelled"
    LOST_CLAIM = "lost_claim"
    FENCED = "fenced"


class NodeState(enum.StrEnum):
    """What the node as a whole is doing; `status --json` shows it as `state`."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPING = "stopping"


class DownMode(enum.StrEnum):
    """How a slot that is no longer wanted gives up its run."""

    DRAIN = "drain"
    PREEMPT = "preempt"
    KILL = "kill"


class AgentStart(enum.StrEnum):
    """How agents are started: forked from a process that has imported wandb, or executed."""

    AUTO = "auto"
    """Forked if possible."""
    FORK = "fork"
    EXEC = "exec"


class CommandKind(enum.StrEnum):
    """The two commands of a W&B sweep server that start a training process."""

    RUN = "run"
    RESUME = "resume"


class SweepState(enum.StrEnum):
    """The server's view of a sweep; UNKNOWN is a state that this version does not know."""

    RUNNING = "RUNNING"
    PENDING = "PENDING"
    PAUSED = "PAUSED"
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    CRASHED = "CRASHED"
    UNKNOWN = "UNKNOWN"

    @classmethod
    def of(cls, word: str) -> "SweepState":
        """The state named `word` in any case."""
        try:
            return cls(word.upper())
        except ValueError:
            return cls.UNKNOWN

    @property
    def is_over(self) -> bool:
        """True if the server hands out nothing until the sweep is resumed."""
        return self in _OVER


_OVER = frozenset({SweepState.FINISHED, SweepState.STOPPED, SweepState.CANCELED, SweepState.FAILED})

_PART = r"[^/\s?#%:,]{1,128}"
_SWEEP = re.compile(rf"(?P<entity>{_PART})/(?P<project>{_PART})/(?:sweeps/)?(?P<name>[\w-]+)")
_ADDRESS = re.compile(r"https?://[^/]+/(?P<path>[^?#]*?)/?(?:[?#].*)?")


@dataclass(frozen=True, slots=True)
class SweepPath:
    """`entity/project/sweep`, the only form that identifies a sweep without a request."""

    entity: str
    project: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "SweepPath":
        """Read `entity/project/sweep` or the address of the sweep's page, `?nw=…` and all.

        Raises ValueError if `text` is neither.
        """
        address = _ADDRESS.fullmatch(text.strip())
        match = _SWEEP.fullmatch(address["path"] if address else text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not of the form ENTITY/PROJECT/SWEEP_ID")
        return cls(match["entity"], match["project"], match["name"])

    def __str__(self) -> str:
        return f"{self.entity}/{self.project}/{self.name}"
