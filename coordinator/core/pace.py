"""Pacing: how soon the next of something may happen.

The generic cell rate algorithm (ITU-T I.371): a token bucket kept as one number, the time at which
it will be full again. `leases/lua/pace.lua` is the same for all nodes of a sweep.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """At most `per_second` in the long run, `burst` at once."""

    per_second: float
    burst: int
    full_at: float = 0.0
    """When nothing of the burst is used up any more, on the caller's clock."""

    def wait_seconds(self, now: float) -> float:
        """How long the next one has to wait; 0.0: not at all."""
        return max(0.0, self.full_at - now - (self.burst - 1) / self.per_second)

    def ready(self, now: float) -> int:
        """How many may happen at once now."""
        used = max(0.0, self.full_at - now) * self.per_second
        return max(0, int(self.burst - used + 1e-9))

    def took(self, count: int, now: float) -> "Pace":
        """After `count` have happened."""
        return replace(self, full_at=max(self.full_at, now) + count / self.per_second)
