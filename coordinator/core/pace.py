"""Pacing: when the next event may happen.

The generic cell rate algorithm (ITU-T I.371): a token bucket kept as one number, the time at which
it will be full again. `leases/lua/pace.lua` is the same for all nodes of a sweep.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """At most `per_second` on average, `burst` at once."""

    per_second: float
    burst: int
    full_at: float = 0.0
    """When the whole burst is available again, on the caller's clock."""

    def wait_seconds(self, now: float) -> float:
        """How long the next event has to wait; 0.0: not at all."""
        return max(0.0, self.full_at - now - (self.burst - 1) / self.per_second)

    def ready(self, now: float) -> int:
        """How many events may happen now."""
        used = max(0.0, self.full_at - now) * self.per_second
        return max(0, int(self.burst - used + 1e-9))

    def took(self, count: int, now: float) -> "Pace":
        """The state after `count` events."""
        return replace(self, full_at=max(self.full_at, now) + count / self.per_second)
