"""Messages on the shims' socket, between one training's shim and the daemon.

Owns their shape: JSON objects, one per line, in both directions. Unknown fields are ignored, so
that a shim and a daemon of different versions understand each other. `coordinator/shim.py` defines
them itself, because it imports nothing of ours.
"""

import msgspec


# --- messages of the shim -------------------------------------------------------------------------
class Hello(msgspec.Struct, frozen=True, tag_field="say", tag="hello"):
    """First line of a connection, also when a shim reconnects to a restarted daemon."""

    agent: str
    """The agent's secret token, as in its gateway address."""
    run_id: str
    pid: int
    """The shim's own pid."""
    child_pid: int | None
    """Set when the shim reconnects and its training is already running."""
    argv: list[str]
    cwd: str
    status: int | None = None
    """The training's raw wait status if it has already ended."""
    told_to_end: str = ""
    """"preempt" or "kill" if a daemon had asked for its end, which the next one must know."""


class Started(msgspec.Struct, frozen=True, tag_field="say", tag="started"):
    """The training process was started."""

    pid: int


class StartFailed(msgspec.Struct, frozen=True, tag_field="say", tag="start_failed"):
    """The command could not be executed: `error` is the system's message."""

    error: str
    exit_code: int


class Exited(msgspec.Struct, frozen=True, tag_field="say", tag="exited"):
    """The main training process ended; `status` is the raw wait status of waitpid(2)."""

    status: int


class TreeGone(msgspec.Struct, frozen=True, tag_field="say", tag="tree_gone"):
    """No process of the run is left; `killed` counts those that had to be killed."""

    killed: int


class SignalSent(msgspec.Struct, frozen=True, tag_field="say", tag="signal_sent"):
    """Signal number `signal` went to the main process; `origin` is "daemon" or "direct"."""

    signal: int
    origin: str


ShimSays = Hello | Started | StartFailed | Exited | TreeGone | SignalSent


# --- messages to the shim -------------------------------------------------------------------------
class Go(msgspec.Struct, frozen=True, tag_field="do", tag="go"):
    """Start the training with these changes to the environment; null removes a variable."""

    env: dict[str, str | None]
    linger_seconds: float
    """How long processes may outlive the main one before they are killed."""
    exit_file: str
    """Where the shim writes the wait status before it reports it."""
    cgroup: str = ""
    """The control group that the training joins before it is executed."""


class Refuse(msgspec.Struct, frozen=True, tag_field="do", tag="refuse"):
    """Do not start; exit with `exit_code`."""

    exit_code: int
    reason: str


class SendSignal(msgspec.Struct, frozen=True, tag_field="do", tag="signal"):
    """Send signal number `signal` to the main training process.

    `once`: not if it had that signal before, from us or from anyone through the shim.
    """

    signal: int
    once: bool = True
    preempt: bool = False
    """It must end because of this signal; 0 if we signalled its workers ourselves."""


class KillTree(msgspec.Struct, frozen=True, tag_field="do", tag="kill_tree"):
    """SIGKILL every process of the run, including the main one, at once."""


ShimTold = Go | Refuse | SendSignal | KillTree
