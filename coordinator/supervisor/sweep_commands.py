"""Answers `coordinatorctl sweep`: changes the sweep itself, for all nodes.

Owns the order: what a person wants is marked in Redis first, so that no node resumes a sweep that
is being stopped. The change itself is the real `wandb sweep` command's.
"""

import anyio
import structlog

from coordinator.core.protocol import Answer, ChangeSweep, Done, Failed, Invalid, Refused
from coordinator.core.sweep import SweepVerb
from coordinator.errors import CoordinatorError
from coordinator.leases.sweep_hold import HoldStatus
from coordinator.supervisor.pool import Pool
from coordinator.supervisor.revival import HOLD_SECONDS
from coordinator.wandb_account.sweep_command import SweepCommand, SweepCommandError

log = structlog.get_logger()

LOOK_SECONDS = 10.0
ENDS = frozenset({SweepVerb.STOP, SweepVerb.CANCEL})


class SweepCommands:
    """See the module."""

    def __init__(self, pool: Pool, command: SweepCommand, *, graceful: bool) -> None:
        """`graceful`: a cancel is, when the request does not say."""
        self._pool = pool
        self._command = command
        self._graceful = graceful

    async def handle(self, request: ChangeSweep) -> Answer:
        """The answer, when it is done."""
        verb = SweepVerb(request.verb)
        graceful = request.graceful
        if verb is not SweepVerb.CANCEL and graceful:
            return Invalid("only a cancel can be graceful")
        if (request.grace_seconds or 0) < 0:
            return Invalid(f"a grace of {request.grace_seconds} s is negative")
        if graceful is None:
            graceful = self._graceful and verb is SweepVerb.CANCEL
        paused = self._pool.paused
        try:
            if graceful:
                await self._give_up_runs(request.grace_seconds)
            return await self._change(verb)
        except CoordinatorError as error:
            return Failed(str(error))
        finally:
            if graceful and not paused:
                await self._claim_again()

    async def _change(self, verb: SweepVerb) -> Answer:
        sweep_hold = self._pool.services.leases.sweep_hold
        if sweep_hold is None:
            await self._command.run(verb)
        else:
            async with sweep_hold.taken(verb, HOLD_SECONDS) as hold:
                if hold.status is not HoldStatus.GRANTED:
                    return Refused(f"node {hold.detail} is changing the sweep; try again")
                try:
                    await self._command.run(verb)
                except SweepCommandError:
                    # W&B cannot end a sweep that is over; the mark is wanted all the same.
                    hold.worked = verb in ENDS and await self._pool.sweep.asked_is_over()
                    if hold.worked and verb is SweepVerb.STOP:
                        return Done(f"{self._command.sweep} was over already; no node resumes it")
                    raise
                hold.worked = True
        log.info("sweep_changed", sweep=str(self._command.sweep), verb=verb)
        self._pool.sweep.ended()
        return Done(f"wandb sweep {verb.option} {self._command.sweep}: done")

    async def _claim_again(self) -> None:
        """Once the node has seen what became of the sweep; it would claim for a moment else."""
        with anyio.move_on_after(LOOK_SECONDS):
            while self._pool.sweep.undecided:
                await self._pool.services.changed.wait()
        self._pool.set_paused(False)

    async def _give_up_runs(self, grace_seconds: float | None) -> None:
        """Signal what runs here, and wait until it is gone; nothing is claimed meanwhile."""
        pool = self._pool
        grace = pool.settings.grace_seconds if grace_seconds is None else grace_seconds
        pool.set_paused(True)
        while pool.trainings:
            for training in pool.trainings:
                training.preempt(pool.settings.preempt_signal, grace)
            await pool.services.changed.wait()
