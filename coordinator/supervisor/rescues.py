"""Runs that W&B will not hand out again: offered to all nodes, taken by any that has a free slot.

Owns the node's side of the rescue queue. The server is asked before a run is taken whose holder
died without a word: one that it shows alive is left alone.
"""

import json

import anyio
import structlog

from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.core.rescue import Policy, is_alive, wants
from coordinator.core.wire import TrainCommand
from coordinator.errors import CoordinatorError
from coordinator.leases import Leases, OfferStatus, Rescue
from coordinator.supervisor.claims import Claims
from coordinator.supervisor.undelivered import Undelivered
from coordinator.wandb_account import Account

log = structlog.get_logger()


class Rescues:
    """See the module."""

    def __init__(
        self,
        policy: Policy,
        leases: Leases,
        account: Account,
        sweep: SweepPath,
        kept: Undelivered,
        *,
        patience_seconds: float,
    ) -> None:
        """`patience_seconds`: TTL and grace of a lease, and a little more."""
        self._patience = patience_seconds
        self._policy = policy
        self._leases = leases
        self._account = account
        self._sweep = sweep
        self._kept = kept
        self._owed: dict[str, Outcome] = {}
        self._settling = anyio.Lock()
        self._waited: bool | None = None
        """What Redis said when it was asked last whether runs wait."""

    async def consider(
        self, command: TrainCommand, outcome: Outcome, *, excused: bool = False
    ) -> None:
        """Offer a run that ended so, if the policy wants it; it is owed until Redis has it.

        What is owed is on disk: the next daemon of this node trains it, however this one ends.

        `excused`: it failed for no fault of its own.
        """
        if not wants(self._policy, outcome, excused=excused):
            return
        again = _resume(command)
        await self._kept.keep(again)
        self._owed[again.run_id] = outcome
        await self.settle()
        if again.run_id in self._owed:
            log.warning("rescue_delayed", run_id=command.run_id, outcome=outcome)

    async def settle(self) -> None:
        """Offer what is owed, as far as Redis answers."""
        async with self._settling:
            for run_id, outcome in list(self._owed.items()):
                if not self._redis_answers:
                    return
                try:
                    await self._offer(run_id, outcome)
                except CoordinatorError:
                    return
                self._owed.pop(run_id, None)
                await self._kept.settle(run_id)

    async def _offer(self, run_id: str, outcome: Outcome) -> None:
        policy = self._policy
        status = await self._leases.offer(run_id, policy.backoff_seconds, policy.max_attempts)
        if status is OfferStatus.QUEUED:
            log.info("rescue_queued", run_id=run_id, outcome=outcome)
        elif status is OfferStatus.EXHAUSTED:
            log.error("run_given_up", run_id=run_id, outcome=outcome, attempts=policy.max_attempts)

    def is_kept(self, run_id: str) -> bool:
        """Whether a command for the run waits on this node."""
        return self._kept.has(run_id)

    @property
    def _redis_answers(self) -> bool:
        """Otherwise each question costs its time-out, which a daemon that ends does not have."""
        return self._leases.admits(None)

    async def hand_over(self, command: TrainCommand) -> bool:
        """Give a run that was claimed and not started to any free node; False if we cannot."""
        if not self._policy.enabled or not self._redis_answers:
            return False
        known = (command.program, json.dumps(command.args, sort_keys=True))
        try:
            status = await self._leases.offer(command.run_id, 0.0, 0, known)
        except CoordinatorError:
            return False
        if status is OfferStatus.QUEUED:
            log.info("claim_handed_over", run_id=command.run_id, kind=command.kind)
        handed = status in {OfferStatus.QUEUED, OfferStatus.QUARANTINED}
        if handed:
            await self._kept.settle(command.run_id)
        return handed

    async def relieve(self, claims: Claims) -> None:
        """Nothing that was fetched waits on a node that may not start it: others can."""
        with anyio.CancelScope(shield=True):
            taken = claims.take_undelivered()
            claims.restore([c for c in taken if not await self.hand_over(c)])

    async def next(self) -> TrainCommand | None:
        """A run to train again, as a `resume` command."""
        if not self._policy.enabled:
            return None
        found = await self._leases.take()
        if found is None or (found.lost and await self._lives(found)):
            return None
        log.info("rescue_taken", run_id=found.run_id, lost=found.lost,
                 silent_seconds=found.silent_seconds)  # fmt: skip
        return _resume(found)

    async def waiting(self, over_seconds: float) -> bool:
        """Whether runs of a sweep that has been over for `over_seconds` may need training yet.

        A lease that stands is one of a node that died, or of one that still trains: after TTL and
        grace the first kind has come into the queue, and the second is not ours to wait for. While
        Redis is silent its last word holds.
        """
        if not self._policy.enabled:
            return False
        if self._owed:
            return True
        try:
            waiting = await self._leases.waiting()
        except CoordinatorError:
            return over_seconds < self._patience if self._waited is None else self._waited
        early = over_seconds < self._patience
        self._waited = waiting.rescues > 0 or (waiting.leases > 0 and early)
        return self._waited

    async def _lives(self, found: Rescue) -> bool:
        try:
            state, age = await self._account.run_life(self._sweep, found.run_id)
        except CoordinatorError as error:
            log.warning("run_state_unknown", run_id=found.run_id, reason=str(error))
            return True
        if alive := is_alive(state, age):
            log.info("rescue_put_off", run_id=found.run_id, server_state=state, age_seconds=age)
        return alive


def _resume(run: TrainCommand | Rescue) -> TrainCommand:
    """The command that trains a run again."""
    raw = {"type": "resume", "run_id": run.run_id, "program": run.program, "args": run.args}
    return TrainCommand(CommandKind.RESUME, run.run_id, run.program, run.args, raw)
