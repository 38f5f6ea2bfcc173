"""The cells of the matrix: who is killed, in which phase of a run, and what may come of it.

Owns the tables of expected outcomes. `Outcomes` are those of the stays of the run that was hit, in
their order; a run that nobody touched has the one that it earned itself.
"""

import enum
from dataclasses import dataclass

Outcomes = tuple[str, ...]


class Victim(enum.StrEnum):
    """Whose process gets SIGKILL."""

    DAEMON = "daemon"
    AGENT = "agent"
    AGENT_SERVER = "agent_server"
    """The process from which agents are forked."""
    SHIM = "shim"
    TRAINING = "training"
    REDIS = "redis"
    """The embedded server."""


class Phase(enum.StrEnum):
    """How far the run has come; later ones have a higher `order`."""

    WARM = "warm"
    """An agent has registered; there is no run."""
    CLAIMED = "claimed"
    """The lease is ours and the command was given to the agent, which has started nothing yet."""
    WAITING = "waiting"
    """The shim has said hello and waits for the word to start."""
    BEFORE_INIT = "before_init"
    """The training lives and has not called wandb.init."""
    TRAINING = "training"
    """It logs steps."""
    SAVING = "saving"
    """It was told to go, and saves."""
    EXITING = "exiting"
    """wandb.finish is through; the main process has ended, or is about to; its tree is not gone."""

    @property
    def order(self) -> int:
        """From the first to the last."""
        return list(Phase).index(self)


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of the matrix."""

    victim: Victim
    phase: Phase

    def __str__(self) -> str:
        return f"{self.victim}:{self.phase}"


NOT_THERE = "there is none in this phase"
DONE: tuple[Outcomes, ...] = (("finished",),)
CRASHED: tuple[Outcomes, ...] = (("crashed", "finished"),)
NEVER_BEGAN: tuple[Outcomes, ...] = (("lost_claim", "finished"), ("finished",))
"""The second: the death was seen while another agent could still be given the command."""
GAVE_UP: tuple[Outcomes, ...] = (("preempted", "finished"),)
CUT_OFF: tuple[Outcomes, ...] = (("interrupted", "finished"), ("preempted", "finished"))
"""Killed while it saved: the server re-queues a marked run, yet only after its silence."""

EXPECTED: dict[Phase, dict[Victim, tuple[Outcomes, ...]]] = {
    Phase.WARM: {
        Victim.DAEMON: DONE,
        Victim.AGENT: DONE,
        Victim.AGENT_SERVER: DONE,
        Victim.REDIS: DONE,
    },
    Phase.CLAIMED: {
        Victim.DAEMON: DONE,
        Victim.AGENT: DONE,
        Victim.AGENT_SERVER: DONE,
        Victim.REDIS: DONE,
    },
    Phase.WAITING: {
        Victim.DAEMON: DONE,
        Victim.AGENT: NEVER_BEGAN,
        Victim.AGENT_SERVER: DONE,
        Victim.SHIM: NEVER_BEGAN,
        Victim.REDIS: DONE,
    },
    Phase.BEFORE_INIT: {
        Victim.DAEMON: DONE,
        Victim.AGENT: DONE,
        Victim.AGENT_SERVER: DONE,
        Victim.SHIM: CRASHED,
        Victim.TRAINING: CRASHED,
        Victim.REDIS: DONE,
    },
    Phase.TRAINING: {
        Victim.DAEMON: DONE,
        Victim.AGENT: DONE,
        Victim.AGENT_SERVER: DONE,
        Victim.SHIM: CRASHED,
        Victim.TRAINING: CRASHED,
        Victim.REDIS: DONE,
    },
    Phase.SAVING: {
        Victim.DAEMON: GAVE_UP,
        Victim.AGENT: GAVE_UP,
        Victim.AGENT_SERVER: GAVE_UP,
        Victim.SHIM: CUT_OFF,
        Victim.TRAINING: CUT_OFF,
        Victim.REDIS: GAVE_UP,
    },
    Phase.EXITING: dict.fromkeys(Victim, DONE),
}
"""A victim that is not named in a phase is not there yet."""


def cells() -> list[Cell]:
    """All of the matrix, phase by phase."""
    return [Cell(victim, phase) for phase, row in EXPECTED.items() for victim in row]


def cell_of(words: str) -> Cell:
    """`victim:phase`. Raises ValueError."""
    victim, _, phase = words.partition(":")
    cell = Cell(Victim(victim), Phase(phase))
    if cell.victim not in EXPECTED[cell.phase]:
        raise ValueError(f"{cell}: {NOT_THERE}")
    return cell
