"""What happens after a training's last process: the lease, the outcome, the record.

Owns the release of leases: never before the tree is gone, and at once after it, so that another
node can go on. The outcome may need the server's view of the run; the slot does not wait for it.
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import structlog
from anyio.abc import TaskGroup

from coordinator.core.breaker import BY_ITSELF, Life
from coordinator.core.model import Outcome, SweepPath
from coordinator.core.outcome import Ending, asks_the_server, judge
from coordinator.core.protocol import RunView
from coordinator.core.rescue import RESCUED_BY_DEFAULT
from coordinator.core.signals import signal_name
from coordinator.errors import CoordinatorError
from coordinator.leases import Leases
from coordinator.supervisor.agent import Agent
from coordinator.supervisor.breakers import Stayed
from coordinator.supervisor.guards import Guards
from coordinator.supervisor.history import History
from coordinator.supervisor.level import Level
from coordinator.supervisor.rescues import Rescues
from coordinator.supervisor.stays import StayFiles, utc_now
from coordinator.supervisor.training import Training
from coordinator.wandb_account import Account
from coordinator.wandb_account.questions import KeyRefusedError

log = structlog.get_logger()

INIT_SECONDS = 120.0
"""`wandb.init` gives up after 90 s; what has lived for longer did not fail because of it."""
SERVER_SECONDS = 10.0
"""How long the server may take to tell a run's state before we judge without it."""
MOVE_SECONDS = 1.5
"""A run that was handed out again gets its next lease by then. Only who ended by itself can have
told the server of it; a process that a signal ended waits for nobody."""
MOVE_LOOK_SECONDS = 0.1
"""Before the second look; doubled each time, since a whole cluster may end at once."""
INIT_TAKES = 1.0
"""Seconds from the start of a training to `wandb.init`, at the least. Who ends sooner has told the
server nothing, and a bad machine must not have its breaker wait for that."""

REQUEUED = frozenset({Outcome.PREEMPTED, *RESCUED_BY_DEFAULT})


class Endings:
    """See the module."""

    def __init__(
        self,
        *,
        node: str,
        sweep: SweepPath,
        account: Account,
        leases: Leases,
        history: History,
        stays: StayFiles,
        rescues: Rescues,
        changed: Level,
        guards: Guards,
        requeued: Callable[[], object],
        linger: Callable[[Agent], Coroutine[Any, Any, None]],
        group: TaskGroup,
    ) -> None:
        """`requeued` is called when the server has queued a run again: a sweep that is over may
        have to go on. `linger` sees to an agent whose training is gone."""
        self._node = node
        self._sweep = sweep
        self._account = account
        self._leases = leases
        self._history = history
        self._stays = stays
        self._rescues = rescues
        self._changed = changed
        self._guards = guards
        self._pending: set[Training] = set()
        self._requeued = requeued
        self._linger = linger
        self._group = group

    @property
    def pending(self) -> bool:
        """Some endings are not complete."""
        return bool(self._pending)

    def begin(self, training: Training) -> None:
        """Release, judge and record in the background."""
        self._pending.add(training)
        self._group.start_soon(self._conclude, training)

    async def settle(self) -> None:
        """Wait for all endings; each is bounded in time."""
        while self._pending:
            await self._changed.wait()
        await self._history.flush()

    async def _conclude(self, training: Training) -> None:
        try:
            with anyio.CancelScope(shield=True):
                await self._release(training)
                await self._record(training)
                await anyio.to_thread.run_sync(self._stays.remove, training.claim)
        finally:
            self._pending.discard(training)
            self._group.start_soon(self._linger, training.agent)
            self._changed.bump()

    async def _release(self, training: Training) -> None:
        if training.attempt.fenced:
            await self._leases.forget(training.lease.token)
            return
        ending = training.ending(None)
        likely = training.attempt.preempted and asks_the_server(ending)
        outcome = Outcome.PREEMPTED if likely else judge(ending)[0]
        await self._leases.release(training.lease.token, outcome)

    async def _record(self, training: Training) -> None:
        """Judge, tell, and offer the run again; an end that is on record is only offered again."""
        asked, server_state = False, None
        if asks_the_server(training.ending(None)):
            asked, server_state = await self._ask(training.run_id)
        ending = training.ending(server_state)
        if ending.may_have_moved_on:
            lived = training.lived_seconds
            could_tell = ending.exit_code is not None and (lived is None or lived >= INIT_TAKES)
            patience = MOVE_SECONDS if could_tell else 0.0
            ending = replace(ending, moved_on=await self._moved_on(training, patience))
        outcome, cause = judge(ending)
        life = Life(outcome, training.lived_seconds, asked, server_state, training.ordered)
        on_record = self._history.knows(training.run_id, training.began)
        if not on_record:
            await self._tell(training, ending, outcome, cause)
        excused = await self._excused(training, life)
        if not on_record:
            stayed = Stayed(training.run_id, training.slot, training.command.kind, life)
            await self._guards.breakers.ended(stayed, excused=excused)
        await self._rescues.consider(training.command, outcome, excused=excused)
        if outcome in REQUEUED:
            self._requeued()

    async def _tell(self, training: Training, ending: Ending, outcome: Outcome, cause: str) -> None:
        log.info("run_ended", slot=training.slot, run_id=training.run_id, outcome=outcome,
                 cause=cause, server_state=ending.server_state,
                 fence=training.lease.fence)  # fmt: skip
        view = msgspec.structs.replace(
            view_of(training, self._node),
            outcome=outcome,
            exit_code=ending.exit_code,
            signal=None if ending.signal is None else signal_name(ending.signal),
            ended=utc_now(),
            detail=training.attempt.error or cause,
            server_state=ending.server_state,
        )
        await self._history.add(view)
        if (shared := self._leases.shared) is not None:
            try:
                await shared.add_stay(view.run_id, msgspec.json.encode(view).decode())
            except CoordinatorError as error:  # this node knows it all the same
                log.debug("stay_not_shared", run_id=view.run_id, problem=str(error))

    async def _excused(self, training: Training, life: Life) -> bool:
        """Whether it failed for want of room, of a key or of W&B: nobody here is to blame then."""
        if life.ordered or life.outcome not in BY_ITSELF:
            return False
        if life.before_init:
            self._guards.premises.doubt_key()
        reason = await self._guards.premises.look()
        lived = life.lived_seconds or 0.0
        if not reason and (life.before_init or (not life.asked and lived < INIT_SECONDS)):
            reason = self._guards.upstream.failed_within(lived + SERVER_SECONDS)
        if reason:
            log.warning(
                "failure_excused", run_id=training.run_id, slot=training.slot, reason=reason
            )
        return bool(reason)

    async def _ask(self, run_id: str) -> tuple[bool, str | None]:
        """Whether the server has answered, and the run's state there."""
        with anyio.move_on_after(SERVER_SECONDS):
            try:
                return True, await self._account.run_state(self._sweep, run_id)
            except KeyRefusedError as error:
                self._guards.premises.doubt_key()
                log.warning("run_state_unknown", run_id=run_id, reason=str(error))
            except CoordinatorError as error:
                log.warning("run_state_unknown", run_id=run_id, reason=str(error))
        return False, None

    async def _moved_on(self, training: Training, patience_seconds: float) -> bool:
        """Whether somebody has claimed the run since, or does within `patience_seconds`."""
        until, pause = anyio.current_time() + patience_seconds, MOVE_LOOK_SECONDS
        while not await self._is_claimed(training):
            if (left := until - anyio.current_time()) <= 0:
                return False
            await anyio.sleep(min(pause, left))
            pause *= 2
        return True

    async def _is_claimed(self, training: Training) -> bool:
        """No, if Redis cannot say."""
        if self._rescues.is_kept(training.run_id):  # fetched, and waiting for a slot or its lease
            return True
        if (operations := self._leases.operations) is None:
            return False
        try:
            known = await operations.show(training.run_id)
        except CoordinatorError:
            return False
        return known is not None and known.fence > training.lease.fence


def view_of(training: Training, node: str) -> RunView:
    """A stay that has not ended."""
    return RunView(
        run_id=training.run_id,
        slot=training.slot,
        kind=training.command.kind,
        node=node,
        outcome=None,
        exit_code=None,
        signal=None,
        started=training.began,
        ended=None,
        pid=training.attempt.pid,
        fence=training.lease.fence,
    )
