"""Whether anything is left to train, once the sweep itself hands out nothing any more.

Owns the question whether rescues wait or may follow. It must never say "nothing" while a run here
may still end so that it has to run again.
"""

from collections.abc import Callable
from time import monotonic

from coordinator.leases.renewal import jittered
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.sweep import SweepWatch

LOOK_SECONDS = 5.0
"""Between two questions while nothing has changed here; all nodes of a sweep that is over ask."""


class Prospects:
    """See the module."""

    def __init__(
        self,
        sweep: SweepWatch,
        rescues: Rescues,
        fetched: Callable[[], bool],
    ) -> None:
        """`fetched`: a run waits here for a slot."""
        self._sweep = sweep
        self._rescues = rescues
        self._fetched = fetched
        self._over_since = monotonic()
        self._look_at = 0.0
        self._rescue_waits: bool | None = None
        """Known only while the sweep is over: it is asked for then."""
        self._quiet_since_asked = False
        self._settled = False
        """It was asked, and answered, after the last run here had ended."""

    @property
    def nothing_now(self) -> bool:
        """The server hands out nothing any more, and nothing waits that we could train."""
        if self._sweep.closed or not self._sweep.over or self._rescue_waits is None:
            return self._sweep.closed
        return not (self._rescue_waits or self._fetched())

    @property
    def nothing_ever(self) -> bool:
        """And nothing can follow: every run here has ended, and was asked about after that."""
        return self.nothing_now and (self._settled or self._sweep.closed)

    @property
    def guests_welcome(self) -> bool:
        """Runs wait, and the server takes no agents on for a sweep that is over."""
        return self._sweep.over and not self.nothing_now

    def agents_needed(self, *, quiet: bool) -> bool:
        """Somebody may have work for an idle agent. `quiet`: no run is here, and no ending that is
        not complete."""
        return not self.nothing_now or not (quiet or self._sweep.closed)

    def disturbed(self) -> None:
        """A run is here, or an ending that is not complete: what was known does not count."""
        self._settled = self._quiet_since_asked = False

    async def look(self, *, quiet: bool) -> None:
        """Ask whether runs wait to be rescued: at once where it decides, else now and then."""
        if not self._sweep.over:
            self._rescue_waits, self._over_since = None, monotonic()
            return
        known = self._rescue_waits is not None and (self._settled or not quiet)
        if known and monotonic() < self._look_at:
            return
        self._look_at = monotonic() + jittered(LOOK_SECONDS, 0.2)
        self._settled, self._quiet_since_asked = False, quiet
        self._rescue_waits = await self._rescues.waiting(monotonic() - self._over_since)
        self._settled = self._quiet_since_asked
