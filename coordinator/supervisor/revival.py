"""Resumes a sweep that is over while runs of it wait to run again.

Owns the decision for this node; the hold in Redis makes it one node's, and remembers what people
did. It must never resume a sweep that a person stopped or cancelled, as far as that can be known.
"""

import enum

import anyio
import structlog

from coordinator.core.model import SweepPath
from coordinator.core.sweep import SweepVerb, SweepWork, why_not_revived
from coordinator.errors import CoordinatorError
from coordinator.leases import Leases
from coordinator.leases.sweep_hold import Hold, HoldStatus, SweepHold
from coordinator.wandb_account import Account
from coordinator.wandb_account.sweep_command import (
    COMMAND_SECONDS,
    SweepCommand,
    SweepCommandError,
)

log = structlog.get_logger()

HOLD_SECONDS = COMMAND_SECONDS + 15
MOST_FAILURES = 5
"""Questions in a row that may stay unanswered before a sweep is left as it is."""
FAILED_SECONDS = 10.0
"""Pause after a `wandb sweep --resume` that failed."""


class Verdict(enum.Enum):
    """What is to become of a sweep that is over."""

    LEFT = enum.auto()
    REVIVED = enum.auto()
    LATER = enum.auto()
    """Ask again soon: another node is at it, or it could not be done now."""


class Revival:
    """See the module."""

    def __init__(
        self,
        account: Account,
        sweep: SweepPath,
        leases: Leases,
        command: SweepCommand,
        *,
        enabled: bool,
    ) -> None:
        self._enabled = enabled
        self._account = account
        self._sweep = sweep
        self._leases = leases
        self._command = command
        self._said = ""
        self._failures = 0

    async def consider(self) -> Verdict:
        """Judge a sweep that is over. Raises CoordinatorError when W&B or Redis is silent."""
        hold = self._leases.sweep_hold
        if hold is None:
            return Verdict.LEFT
        work = await self._ask()
        if work is None:
            return Verdict.LEFT
        if not work.state.is_over:
            return Verdict.REVIVED
        reason = why_not_revived(work)
        if reason is None and self._enabled:
            return await self._revive(hold, work)
        if work.queued:
            hint = f"wandb sweep --resume {self._sweep}"
            self._say(len(work.queued), reason or "[sweep] resume_sweep is off", hint)
        return Verdict.LEFT

    async def _ask(self) -> SweepWork | None:
        """What waits on the server; None when it cannot be known.

        A server that never answers this question must not keep a sweep from being over.
        """
        try:
            work = await self._account.sweep_work(self._sweep)
        except CoordinatorError as error:
            self._failures += 1
            if self._enabled and self._failures < MOST_FAILURES:
                raise
            self._say(0, str(error), "")
            return None
        self._failures = 0
        return work

    async def _revive(self, sweep_hold: SweepHold, work: SweepWork) -> Verdict:
        async with sweep_hold.taken(SweepVerb.REVIVE, HOLD_SECONDS, work.queued) as hold:
            match hold.status:
                case HoldStatus.GRANTED:
                    return await self._granted(hold, work)
                case HoldStatus.BUSY:
                    return Verdict.LATER
                case HoldStatus.ENDED:
                    reason = f"`coordinatorctl sweep {hold.detail}` ended it"
                case HoldStatus.AGAIN:
                    reason = "it was resumed for these runs before and ended without training them"
        if work.queued or hold.rescues:
            self._say(len(work.queued), reason, "coordinatorctl sweep resume")
        return Verdict.LEFT

    async def _granted(self, hold: Hold, work: SweepWork) -> Verdict:
        if not work.queued and not hold.rescues:
            return Verdict.LEFT
        try:
            await self._command.run(SweepVerb.REVIVE)
        except SweepCommandError as error:
            log.warning("sweep_resume_failed", sweep=str(self._sweep), reason=str(error))
            await anyio.sleep(FAILED_SECONDS)
            return Verdict.LATER
        hold.worked = True
        log.info("sweep_resumed", sweep=str(self._sweep), queued=len(work.queued),
                 rescues=hold.rescues)  # fmt: skip
        return Verdict.REVIVED

    def _say(self, queued: int, reason: str, hint: str) -> None:
        """Once, until it changes: the sweep is looked at again and again."""
        if self._said != reason:
            self._said = reason
            log.warning("sweep_not_resumed", sweep=str(self._sweep), reason=reason,
                        queued=queued, hint=hint)  # fmt: skip
