"""Repeated notices: the first asks, the second hurries, the third kills; a burst counts once.

SLURM and systemd send the same signal several times within a moment (CONT+TERM at preemption, then
CONT+TERM+KILL at the end; a unit's signal reaches every process). Source: SLURM, slurm.conf(5),
PreemptMode and GraceTime; systemd.kill(5).
"""

import enum
from dataclasses import dataclass, replace


class Step(enum.Enum):
    """The reaction to a notice."""

    ASK = "ask"
    IGNORE = "ignore"
    HURRY = "hurry"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Escalation:
    """The progress of the notices of one preemption."""

    storm_seconds: float
    counted: int = 0
    last_seconds: float = 0.0
    """Monotonic time of the last notice, even if it did not count."""

    def notice(self, now_seconds: float) -> tuple["Escalation", Step]:
        """Handle one notice at monotonic time `now_seconds`."""
        in_storm = self.counted > 0 and now_seconds - self.last_seconds < self.storm_seconds
        if in_storm:
            return replace(self, last_seconds=now_seconds), Step.IGNORE
        step = (Step.ASK, Step.HURRY, Step.KILL)[min(self.counted, 2)]
        return replace(self, counted=self.counted + 1, last_seconds=now_seconds), step
