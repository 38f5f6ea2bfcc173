"""Which runs are to run again without the W&B server's doing.

The server queues PREEMPTED runs again, and no others. What ended otherwise without its own fault is
offered to all nodes through Redis. A plain failure never is: it would fail again.
"""

from dataclasses import dataclass

from coordinator.core.model import Outcome

RESCUED_BY_DEFAULT = (Outcome.INTERRUPTED, Outcome.CRASHED, Outcome.LOST_CLAIM)
CANNOT_BE_RESCUED = frozenset({Outcome.FINISHED, Outcome.CANCELLED, Outcome.FENCED})
"""It is done, a person wanted it gone, or somebody else has it."""
FRESH_SECONDS = 60.0
"""A run that the server saw alive so lately is left alone: SDKs report every 30 s at the latest."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`[rescue]` of the configuration."""

    enabled: bool
    on: frozenset[Outcome]
    max_attempts: int
    backoff_seconds: float
    """Before the first new attempt; doubled with each further one."""


def wants(policy: Policy, outcome: Outcome, *, excused: bool = False) -> bool:
    """True when a run that ended so is to be offered again.

    `excused`: a full disk or a missing key made it fail, so it is no failure of its own.
    """
    if not policy.enabled or outcome in CANNOT_BE_RESCUED:
        return False
    return outcome in policy.on or (excused and outcome is Outcome.FAILED)


def is_alive(server_state: str | None, heartbeat_age_seconds: float | None) -> bool:
    """True when the server shows somebody training a run whose holder we take for dead."""
    fresh = heartbeat_age_seconds is not None and heartbeat_age_seconds < FRESH_SECONDS
    return server_state == "RUNNING" and fresh
