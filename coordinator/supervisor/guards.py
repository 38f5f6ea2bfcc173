"""What may hold up claims on this node besides people, leases and the sweep itself.

Owns the four guards as one thing that agents, claims, slots and endings are given.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import anyio

from coordinator.core.breaker import BreakerState, BreakerView
from coordinator.supervisor.breakers import Breakers
from coordinator.supervisor.pacing import Pacer
from coordinator.supervisor.premises import Premises
from coordinator.supervisor.training import Training
from coordinator.supervisor.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Guards:
    """See the module."""

    upstream: Upstream
    pacer: Pacer
    premises: Premises
    breakers: Breakers

    async def run(self, living: Callable[[], Iterable[Training]]) -> None:
        """Look after all of them until cancelled; `living`: the trainings of the node."""

        def ages() -> list[tuple[int, float | None]]:
            return [(t.slot, t.lived_seconds) for t in living() if not t.attempt.exited]

        async with anyio.create_task_group() as group:
            group.start_soon(self.breakers.run, ages)
            group.start_soon(self.premises.run)

    @property
    def open_for_claims(self) -> bool:
        """Whether any slot may claim: else agents are not started either."""
        shut = {self.breakers.node.state, self.breakers.sweep.state}
        return not self.premises.trouble and BreakerState.OPEN not in shut

    def admits(self, slot: int) -> bool:
        """Whether this slot may claim, or go on claiming."""
        return not self.premises.trouble and self.breakers.admits(slot)

    def reasons(self) -> list[str]:
        """What a person should look at, in words."""
        premises = [f"claims are held: {self.premises.trouble}"] if self.premises.trouble else []
        return [*premises, *(_words(view) for view in self.breakers.views())]


def _words(view: BreakerView) -> str:
    whose = view.scope if view.slot is None else f"{view.scope} {view.slot}"
    state = "half-open, a probe decides" if view.state == BreakerState.HALF_OPEN else (
        f"open, a probe follows in {view.retry_in_seconds} s"
    )  # fmt: skip
    return (
        f"breaker: {whose}: {state}: {view.failures} failures in a row, the last: {view.reason}; "
        "`coordinatorctl resume` closes it"
    )
