"""The lease keeper: the lease layer of one node, put together.

Owns the life of the clients and tasks. It must never start or stop a training; it calls back when
one has to stop.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskGroup, TaskStatus

from coordinator.core.lease import (
    Claim,
    Dropped,
    Health,
    HolderState,
    Lease,
    LeaseSettings,
)
from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.core.protocol import LeaseView
from coordinator.errors import PeerError, UserError
from coordinator.leases.addresses import redacted_url
from coordinator.leases.answers import OfferStatus, Rescue, Stolen, Waiting
from coordinator.leases.api import OnFenced, OnStop
from coordinator.leases.claims import Claims
from coordinator.leases.clock import boottime_seconds
from coordinator.leases.connection import open_client
from coordinator.leases.fitness import FitnessWatch
from coordinator.leases.holdings import Holding, Holdings
from coordinator.leases.journal import Journal
from coordinator.leases.keys import Keys
from coordinator.leases.operations import Operations
from coordinator.leases.registry import NodeFacts
from coordinator.leases.releases import Releaser
from coordinator.leases.renewal import Renewer, jittered
from coordinator.leases.scripts import Scripts
from coordinator.leases.shared import Shared
from coordinator.leases.sight import Sight, explain
from coordinator.leases.store import TROUBLE, Store
from coordinator.leases.sweep_hold import SweepHold
from coordinator.leases.wakeups import ANY_RUN, BLOCK_SECONDS, Wakeups

log = structlog.get_logger()

_CONNECTIONS = 6
_ASIDE_SECONDS = 1.0
"""Bound of closing a client."""


async def _ignore_fenced(_lease: Lease) -> None:
    """Without a handler there is no tree to kill."""


async def _ignore_stop(_lease: Lease, _state: HolderState) -> None:
    """Without a handler there is no tree to stop."""


class LeaseKeeper:
    """Leases in Redis; see `api.Leases` for what each method promises."""

    def __init__(  # noqa: PLR0917 - the supervisor's order
        self,
        url: str,
        sweep: SweepPath,
        node: str,
        settings: LeaseSettings,
        journal_dir: Path,
        on_fenced: OnFenced = _ignore_fenced,
        on_stop: OnStop = _ignore_stop,
        *,
        shared: bool = True,
    ) -> None:
        """Connects to nothing yet. Raises ConfigError for a URL that cannot be used.

        `shared` is false for a server that no other node can reach (the embedded one): all owners
        are in our own journal, so nobody has to wait for others to re-assert after a wipe.
        """
        self._settings = settings
        self._shown_url = redacted_url(url)
        self._on_fenced = on_fenced
        self._on_stop = on_stop
        keys = Keys(sweep)
        timeout = settings.timeout_seconds
        self._client = open_client(url, timeout_seconds=timeout, connections=_CONNECTIONS)
        self._reader = open_client(url, timeout_seconds=BLOCK_SECONDS + timeout, connections=1)
        settle = settings.settle_seconds if shared else 0.0
        scripts = Scripts()
        self._store = Store(self._client, keys, node, settings, scripts, settle_seconds=settle)
        self.operations = Operations(self._store, sweep, settings)
        self.sweep_hold = SweepHold(self._store, keys, node, settings)
        journal = Journal(journal_dir)
        sight = self._sight = Sight(self._shown_url, settings)
        self.shared = Shared(
            self._client, keys, settings, scripts, lambda: sight.health.state == "ok"
        )
        self._holdings = Holdings(settings, self._stop)
        self._renewer = Renewer(
            self._store, self._holdings, self._sight, settings, self._register_again
        )
        self._fitness = FitnessWatch(
            self._client, keys.epoch, self._sight, settings,
            round_ended=self._renewer.round_ended, on_change=self._renewer.kick,
        )  # fmt: skip
        self._releaser = Releaser(self._store, journal, settings)
        self._wakeups = Wakeups(
            self._reader, keys.wake(node), settings, lambda: self._store.clock.now_ms
        )
        self._claims = Claims(
            store=self._store,
            journal=journal,
            holdings=self._holdings,
            releaser=self._releaser,
            wakeups=self._wakeups,
            sight=self._sight,
            settings=settings,
        )
        self._alive: frozenset[str] = frozenset()
        self._ended: dict[str, Outcome] = {}
        self._tasks: TaskGroup | None = None
        self._ready = anyio.Event()
        self._closing = False
        self._scope = anyio.CancelScope()

    # --- life -------------------------------------------------------------------------------------
    def adopt(self, alive: Iterable[str], ended: Mapping[str, Outcome]) -> None:
        """See `api.Leases.adopt`. A held token that is named in neither has crashed."""
        self._alive, self._ended = frozenset(alive), dict(ended)

    def describe(self, facts: Callable[[], NodeFacts]) -> None:
        """See `api.Leases.describe`."""
        self._store.facts = facts

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """See `api.Leases.run`."""
        await self._claims.load(self._alive, self._ended)
        with self._scope:
            try:
                async with self._clients(), anyio.create_task_group() as tasks:
                    self._tasks = tasks
                    await self._serve(tasks, task_status)
            except BaseExceptionGroup as group:
                raise _only_user_error(group) from None

    async def _serve(self, tasks: TaskGroup, task_status: TaskStatus[None]) -> None:
        await self._first_contact()
        tasks.start_soon(self._renewer.run)
        tasks.start_soon(self._releaser.run)
        tasks.start_soon(self._wakeups.run)
        tasks.start_soon(self._fitness.run)
        await self._releaser.drained()
        self._ready.set()
        task_status.started()

    async def close(self, bound_seconds: float) -> None:
        """See `api.Leases.close`. What is not answered in time stays in the journal."""
        self._closing = True
        self._claims.end()
        self._ready.set()
        with anyio.move_on_after(bound_seconds):
            await self._releaser.drained()
        self._scope.cancel()

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._tasks, self._closing = None, True
            self._claims.end()
            with anyio.move_on_after(_ASIDE_SECONDS, shield=True):
                await self._client.aclose()
                await self._reader.aclose()

    async def _first_contact(self) -> None:
        """Wait for a Redis that answers, is good enough and has renewed what we hold."""
        while True:
            try:
                server = await self._fitness.first()
            except (*TROUBLE, PeerError) as error:
                self._sight.bad(error)
                self._holdings.missed(boottime_seconds())
            else:
                if await self._renewer.round():
                    break
            await anyio.sleep(jittered(min(self._settings.renew_seconds / 4, 1.0), 0.3))
        log.info("redis_connected", url=self._shown_url, server=server.name)

    # --- the path of a token, see `Claims` --------------------------------------------------------
    async def acquire(self, claim: Claim) -> Lease | Dropped:
        """See `api.Leases.acquire`."""
        await self._ready.wait()
        return await self._claims.acquire(claim)

    def stands(self, token: str) -> bool:
        """See `api.Leases.stands`."""
        return self._holdings.stands(token, boottime_seconds())

    async def release(self, token: str, outcome: Outcome) -> None:
        """See `api.Leases.release`."""
        await self._claims.release(token, outcome)

    async def closing(self, token: str) -> None:
        """See `api.Leases.closing`. Without it a claim may be dropped, and is rescued then."""
        holding = self._holdings.get(token)
        if holding is None:
            return
        try:
            await self._store.closing(holding.lease)
        except TROUBLE as error:
            log.debug("lease_closing_failed", run_id=holding.lease.run_id, problem=str(error))

    async def offer(
        self, run_id: str, delay_seconds: float, most: int, known: tuple[str, str] = ("", "")
    ) -> OfferStatus:
        """See `api.Leases.offer`."""
        try:
            return (await self._store.offer(run_id, delay_seconds, most, known))[0]
        except TROUBLE as error:
            raise PeerError(f"Redis: {explain(error, self._settings)}") from error

    async def take(self) -> Rescue | None:
        """See `api.Leases.take`."""
        try:
            return (await self._store.take())[1]
        except TROUBLE as error:
            log.debug("rescue_take_failed", problem=str(error))
            return None

    async def waiting(self) -> Waiting:
        """See `api.Leases.waiting`."""
        try:
            return (await self._store.take(count_only=True))[0]
        except TROUBLE as error:
            raise PeerError(f"Redis: {explain(error, self._settings)}") from error

    async def rest(self, seconds: float) -> None:
        """See `api.Leases.rest`."""
        with self._wakeups.waiter(ANY_RUN) as waiter:
            try:
                await self._store.rest(seconds)
            except TROUBLE as error:
                log.debug("rest_not_told", problem=str(error))
            await waiter.wait(seconds)

    async def forget(self, token: str) -> None:
        """See `api.Leases.forget`."""
        await self._claims.forget(token)

    # --- called back ------------------------------------------------------------------------------
    def _stop(self, lease: Lease, state: HolderState) -> None:
        if self._tasks is None:
            return
        if state is HolderState.LOST:
            self._tasks.start_soon(self._on_fenced, lease)
        else:
            self._tasks.start_soon(self._on_stop, lease, state)

    def _register_again(self, holding: Holding) -> None:
        """After a wipe the registry has lost the run's arguments; an acquire brings them back."""
        if self._tasks is not None:
            self._tasks.start_soon(self._register, holding)

    async def _register(self, holding: Holding) -> None:
        token = holding.lease.token
        async with self._claims.limit:
            if self._holdings.get(token) is not holding:
                return
            try:
                await self._store.acquire(holding.claim, token, self._holdings.highest_fence)
            except TROUBLE as error:
                log.debug("lease_register_failed", run_id=holding.lease.run_id, problem=str(error))

    # --- questions --------------------------------------------------------------------------------
    def health(self) -> Health:
        """See `api.Leases.health`."""
        return self._sight.health

    def admits(self, kind: CommandKind | None) -> bool:
        """See `api.Leases.admits`. Resumed runs that must wait for settling wait in `acquire`."""
        open_for_claims = self._ready.is_set() and not self._closing
        return open_for_claims and not self._sight.doubtful and self.health().state == "ok"

    @property
    def leases_held(self) -> int:
        """See `api.Leases.leases_held`."""
        return len(self._holdings)

    def held(self) -> list[Lease]:
        """What is held now, adopted leases included."""
        return self._holdings.leases()

    async def list_leases(self) -> list[LeaseView]:
        """See `api.Leases.list_leases`."""
        try:
            return await self._store.list_leases()
        except TROUBLE as error:
            raise PeerError(f"Redis: {explain(error, self._settings)}") from error

    async def steal(
        self, run_id: str, fence: int, *, after_seconds: float | None = None, target: str = ""
    ) -> Stolen:
        """See `Operations.steal`."""
        return await self.operations.steal(
            run_id, fence, after_seconds=after_seconds, target=target
        )


def _only_user_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """An error of the user's reaches the caller as itself, not in a group of one."""
    only = group.exceptions[0]
    return only if len(group.exceptions) == 1 and isinstance(only, UserError) else group
