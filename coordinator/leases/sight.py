"""How well this node sees Redis: when it last answered, and what went wrong since.

Owns the node's view of Redis and the events about it. It must never talk to Redis and never decide
what becomes of a lease.
"""

from typing import Final

import redis.exceptions as redis_errors
import structlog
from redis.asyncio.sentinel import MasterNotFoundError

from coordinator.core.lease import Health, LeaseSettings, judge_health
from coordinator.leases.clock import boottime_seconds
from coordinator.leases.connection import telling

log = structlog.get_logger()

REMIND_SECONDS: Final = 60.0
"""While Redis stays away, this much time lies between two events that say so."""
ADVICE: Final = (
    "trainings go on, no new runs are claimed; check that Redis runs and that [redis] url is right"
)


class Sight:
    """The last acknowledgement and the present trouble."""

    def __init__(self, shown_url: str, settings: LeaseSettings) -> None:
        """`shown_url` must have its password removed."""
        self._url = shown_url
        self._settings = settings
        self._acknowledged = boottime_seconds()
        self._trouble = ""
        self._told: float | None = None
        self._doubt_until = 0.0
        self._unfit = ""
        self._unfit_since = 0.0
        self.seen = False
        """True once Redis has answered."""

    def good(self, sent_seconds: float) -> None:
        """An exchange that was sent at `sent_seconds` (boot time) has succeeded."""
        if self._told is not None:
            away = round(boottime_seconds() - self._acknowledged, 3)
            log.info("redis_recovered", url=self._url, away_seconds=away)
        self._acknowledged = max(self._acknowledged, sent_seconds)
        self._trouble, self._told, self.seen = "", None, True

    def bad(self, error: BaseException) -> None:
        """A renewal or the first contact has failed: said at once, then at a slow pace."""
        now = boottime_seconds()
        self._trouble = explain(error, self._settings)
        if self._told is not None and now - self._told < REMIND_SECONDS:
            return
        self._told = now
        log.warning(
            "redis_unreachable",
            url=self._url,
            problem=self._trouble,
            silent_seconds=round(now - self._acknowledged, 3),
            advice=ADVICE,
        )

    def unfit(self, problem: str) -> None:
        """The server that answers now will not do: what is held is kept, nothing is claimed."""
        if problem == self._unfit:
            return
        self._unfit, self._unfit_since = problem, boottime_seconds()
        log.error("redis_unfit", url=self._url, problem=problem)

    def fit(self) -> None:
        """The server will do."""
        if self._unfit:
            self._unfit = ""
            away = round(boottime_seconds() - self._unfit_since, 3)
            log.info("redis_recovered", url=self._url, away_seconds=away)

    def changed(self, server: str) -> None:
        """Another server answers than before, or the same after a restart."""
        log.warning("redis_changed", url=self._url, server=server)

    def doubt(self) -> None:
        """An acquire failed though renewals may not: claim nothing more for a moment."""
        self._doubt_until = boottime_seconds() + self._settings.renew_seconds / 2

    def trust(self) -> None:
        """An acquire was answered."""
        self._doubt_until = 0.0

    @property
    def doubtful(self) -> bool:
        """True for a moment after a failed acquire."""
        return boottime_seconds() < self._doubt_until

    @property
    def health(self) -> Health:
        """The judgement of the moment; before the first contact it is never "ok"."""
        first = "" if self.seen else "Redis has not answered yet"
        trouble = self._trouble or self._unfit or first
        return judge_health(boottime_seconds() - self._acknowledged, trouble, self._settings)


def explain(  # noqa: PLR0911 - one for each kind of trouble
    error: BaseException, settings: LeaseSettings
) -> str:
    """One line a user can act on."""
    cause = telling(error)
    match cause:
        case MasterNotFoundError():  # its own text shows the Sentinels' passwords
            return "no Sentinel answers, or none knows a primary of that name that is up"
        case redis_errors.BusyLoadingError():
            return "Redis is still loading its data"
        case redis_errors.OutOfMemoryError():
            return "Redis is out of memory (maxmemory)"
        case redis_errors.ReadOnlyError():
            return "this Redis is a read-only replica"
        case redis_errors.AuthenticationError():
            return f"Redis refuses the user or password: {cause}"
        case redis_errors.NoPermissionError():
            return f"the Redis user may not do this: {cause}"
        case redis_errors.TimeoutError() | TimeoutError():
            return f"no answer within {settings.timeout_seconds:g} seconds"
        case _:
            return str(cause) or type(cause).__name__
