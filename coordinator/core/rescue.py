"""Which runs are trained again without the W&B server.

The server queues PREEMPTED runs again, and no others. Other runs that ended through no fault of
their own are offered to all nodes through Redis. A plain failure is not: it would fail again.
"""

from dataclasses import dataclass

from coordinator.core.model import Outcome

RESCUED_BY_DEFAULT = (Outcome.INTERRUPTED, Outcome.CRASHED, Outcome.LOST_CLAIM)
CANNOT_BE_RESCUED = frozenset({Outcome.FINISHED, Outcome.CANCELLED, Outcome.FENCED})
"""It is done, a user stopped it, or another holder has it."""
FRESH_SECONDS = 60.0
"""A run that the server saw alive this recently is left alone: SDKs report at least every 30 s."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`[rescue]` of the configuration."""

    enabled: bool
    on: frozenset[Outcome]
    max_attempts: int
    backoff_seconds: float
    """Pause before the first new attempt; doubled for each further one."""


def wants(policy: Policy, outcome: Outcome, *, excused: bool = False) -> bool:
    """True if a run with this end is offered again.

    `excused`: a full disk or a missing key made it fail, so it is not its own fault.
    """
    if not policy.enabled or outcome in CANNOT_BE_RESCUED:
        return False
    return outcome in policy.on or (excused and outcome is Outcome.FAILED)


def is_alive(server_state: str | None, heartbeat_age_seconds: float | None) -> bool:
    """True if the server shows that a run, whose holder we consider dead, is being trained."""
    fresh = heartbeat_age_seconds is not None and heartbeat_age_seconds < FRESH_SECONDS
    return server_state == "RUNNING" and fresh
