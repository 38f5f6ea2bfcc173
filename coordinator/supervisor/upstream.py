"""How well the W&B server answers: one pause for the whole node when it does not.

Owns the back-off after 429 and 5xx. It must never hold up a training: only questions for work and
starts of agents wait.
"""

import random
from collections.abc import Callable
from http import HTTPStatus
from time import monotonic

import structlog

log = structlog.get_logger()

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0
REFUSED_KEY = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class Upstream:
    """See the module."""

    def __init__(self, key_refused: Callable[[], None]) -> None:
        self._key_refused = key_refused
        self.failures = 0
        """Answers in a row that were none."""
        self.trouble = ""
        """Why there are no answers; "" when there are."""
        self._until = 0.0
        self._last: tuple[float, str] | None = None

    @property
    def wait_seconds(self) -> float:
        """How long nobody here is to ask."""
        return max(0.0, self._until - monotonic())

    def failed_within(self, seconds: float) -> str:
        """How it failed last, if that was so lately; else ""."""
        if self._last is None or monotonic() - self._last[0] > seconds:
            return ""
        return self._last[1]

    def answered(self) -> None:
        """The server has answered somebody; a pause that it asked for goes on all the same."""
        if self.wait_seconds > 0.0:
            return
        if self.trouble:
            log.info("upstream_recovered", failures=self.failures)
        self.failures, self.trouble = 0, ""

    def failed(self, status: int, words: str, retry_after_seconds: float | None) -> float:
        """It has not: everybody backs off, with full jitter, or as long as the server asked for.

        Answers to requests that were under way already do not lengthen the back-off.
        """
        if self.wait_seconds == 0.0:
            self.failures += 1
        if status in REFUSED_KEY:
            self._key_refused()
        ceiling = min(FIRST_BACKOFF_SECONDS * 2**self.failures, LONGEST_BACKOFF_SECONDS)
        backoff = random.uniform(FIRST_BACKOFF_SECONDS / 2, ceiling)  # noqa: S311 - only jitter
        pause = max(backoff, retry_after_seconds or 0.0, self.wait_seconds)
        self._until = monotonic() + pause
        if not self.trouble:
            log.warning("upstream_slowed", status=int(status), reason=words,
                        wait_seconds=round(pause, 3))  # fmt: skip
        self.trouble = f"HTTP {status} {words}".strip()
        self._last = (monotonic(), self.trouble)
        return pause
