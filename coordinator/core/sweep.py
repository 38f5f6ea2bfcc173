"""The sweep's own state: what may be done with it, and when a sweep that is over goes on.

Decides only. FINISHED is the server's word both for a search that is exhausted and for a sweep that
a person stopped (`wandb sweep --stop` sends it), so the number of runs has to tell the two apart.
"""

import enum
from dataclasses import dataclass

from coordinator.core.model import SweepState


class SweepVerb(enum.StrEnum):
    """What is done to a sweep; REVIVE is `wandb sweep --resume` by ourselves."""

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
    """What the server says of a sweep and of the runs that it has queued again."""

    state: SweepState
    runs: int | None
    """Runs that it has made."""
    expected: int | None
    """Runs of the whole search; None for one without an end."""
    queued: tuple[str, ...]
    """Its PREEMPTED runs: each with the time the server heard of it last, so that a run which was
    trained and queued again is another entry."""


def why_not_revived(work: SweepWork) -> str | None:
    """Why a sweep that is over must be left as it is; None when only its search was exhausted.

    A search without an end is never exhausted, so a person ended it.
    """
    if work.state is not SweepState.FINISHED:
        return f"it is {work.state}: a user or a failure ended it"
    if work.runs is None or work.expected is None:
        return "its search has no end, so a user stopped it"
    if work.runs < work.expected:
        return f"it has {work.runs} of {work.expected} runs, so a user stopped it"
    return None
