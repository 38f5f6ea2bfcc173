"""The state of the sweep: how it can be changed, and when a sweep that is over is resumed.

Only decides. The server reports FINISHED both for an exhausted search and for a sweep that a user
stopped (`wandb sweep --stop` sends it), so the number of runs has to distinguish the two.
"""

import enum
from dataclasses import dataclass

from coordinator.core.model import SweepState


class SweepVerb(enum.StrEnum):
    """Changes of a sweep; REVIVE is `wandb sweep --resume` by the daemon itself."""

    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    CANCEL = "cancel"
    REVIVE = "revive"

    @property
    def option(self) -> str:
        """The option of `wandb sweep` that does it."""
        return "--resume" if self is SweepVerb.REVIVE else f"--{self.value}"


@dataclass(frozen=True, slots=True)
class SweepWork:
    """The server's data about a sweep and the runs that it has queued again."""

    state: SweepState
    runs: int | None
    """Number of runs created so far."""
    expected: int | None
    """Number of runs of the whole search; None if it has no end."""
    queued: tuple[str, ...]
    """Its PREEMPTED runs: each with the time the server heard of it last, so that a run which was
    trained and queued again is another entry."""


def why_not_revived(work: SweepWork) -> str | None:
    """Why a sweep that is over must not be resumed; None if only its search was exhausted.

    A search without an end is never exhausted, so a user ended it.
    """
    if work.state is not SweepState.FINISHED:
        return f"it is {work.state}: a user or a failure ended it"
    if work.runs is None or work.expected is None:
        return "its search has no end, so a user stopped it"
    if work.runs < work.expected:
        return f"it has {work.runs} of {work.expected} runs, so a user stopped it"
    return None
