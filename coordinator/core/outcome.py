"""Why a run's stay in a slot ended: one table from facts to an outcome.

The agent's exit code is useless (it is 0 after a failure, a SIGKILL or a preemption), so the
outcome comes from the wait status of the training, what we did to it, and what the server shows.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.core.model import Outcome

OVER = frozenset({"FINISHED", "FAILED", "CRASHED", "KILLED"})
"""States after which the server does nothing more with a run."""


@dataclass(frozen=True, slots=True)
class Ending:
    """All facts that determine an outcome."""

    exit_code: int | None
    """None if a signal ended the main process, or if its exit status is unknown."""
    signal: int | None
    started: bool = True
    """False if the training never began."""
    preempted: bool = False
    """We sent a graceful signal because of a notice or the removal of the slot."""
    killed: bool = False
    """We sent SIGKILL at the end of the grace."""
    cancelled: bool = False
    """A user stopped the run or the sweep on the server."""
    fenced: bool = False
    """Another holder has a higher fencing token; we killed our copy."""
    oom: bool = False
    """The kernel's out-of-memory killer killed a process of the tree."""
    server_state: str | None = None
    """What the server shows for the run after its end, in upper case; None: not known."""
    moved_on: bool = False
    """A later claim has the run's lease."""

    @property
    def succeeded(self) -> bool:
        """The main process exited with 0."""
        return self.exit_code == 0

    @property
    def may_have_moved_on(self) -> bool:
        """The server shows the run as not over: an unreported end, or already the next stay.

        A signal to every process of a job (as SLURM sends) ends the SDK's service before the
        training can report its end through it.
        """
        return self.server_state not in OVER | {None, "PREEMPTED"}

    @property
    def requeued(self) -> bool:
        """The server has queued the run, or has already handed it out again."""
        return self.server_state == "PREEMPTED" or (self.may_have_moved_on and self.moved_on)


Rule = tuple[str, Callable[[Ending], bool], Outcome]

TABLE: tuple[Rule, ...] = (
    ("another holder exists", lambda e: e.fenced, Outcome.FENCED),
    ("never began", lambda e: not e.started, Outcome.LOST_CLAIM),
    ("stopped by a user", lambda e: e.cancelled and not e.succeeded, Outcome.CANCELLED),
    (
        "exit 0 after our signal",
        lambda e: e.succeeded and e.preempted and not e.cancelled,
        Outcome.PREEMPT_LOST,
    ),
    ("exit 0", lambda e: e.succeeded, Outcome.FINISHED),
    ("finished, says the server", lambda e: e.server_state == "FINISHED", Outcome.FINISHED),
    ("the server will re-queue it", lambda e: e.requeued, Outcome.PREEMPTED),
    ("ended by us, not marked preempted", lambda e: e.preempted or e.killed, Outcome.INTERRUPTED),
    ("killed by the kernel, out of memory", lambda e: e.oom, Outcome.OOM),
    ("ended by a signal that was not ours", lambda e: e.signal is not None, Outcome.CRASHED),
    ("exit status unknown", lambda e: e.exit_code is None, Outcome.CRASHED),
    ("its own exit code", lambda e: True, Outcome.FAILED),
)
"""First match wins. docs/outcomes.md is checked against this table."""


def judge(ending: Ending) -> tuple[Outcome, str]:
    """The outcome and its cause."""
    for cause, applies, outcome in TABLE:
        if applies(ending):
            return outcome, cause
    raise AssertionError("the last rule of TABLE applies to everything")


def asks_the_server(ending: Ending) -> bool:
    """True when the outcome depends on the server's view of the run."""
    decided = ending.fenced or not ending.started or ending.succeeded
    return not decided and not ending.cancelled
