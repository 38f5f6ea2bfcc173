"""What an operator may look at and do, from any node: leases of others, their holders, the nodes.

Owns the operator's side of the leases. It must never touch what this node holds; a lease of its own
that is taken back reaches it as any other's, at its next renewal.
"""

from collections.abc import Awaitable
from typing import TypeVar

import structlog

from coordinator.core.cluster import LeaseDetailView, NodeView
from coordinator.core.lease import LeaseSettings
from coordinator.core.model import SweepPath
from coordinator.errors import PeerError
from coordinator.leases.answers import StealStatus, Stolen
from coordinator.leases.registry import Freed, FreeStatus, NodeSeen
from coordinator.leases.sight import explain
from coordinator.leases.store import TROUBLE, Store

log = structlog.get_logger()
T = TypeVar("T")


class Operations:
    """See the module. Each method raises PeerError when Redis does not answer."""

    def __init__(self, store: Store, sweep: SweepPath, settings: LeaseSettings) -> None:
        self._store = store
        self._sweep = sweep
        self._settings = settings

    async def show(self, run_id: str) -> LeaseDetailView | None:
        """All that is known of a run's lease; None when there has been none for a day."""
        return await self._answered(self._store.show(run_id))

    async def nodes(self) -> list[NodeView]:
        """Every node that was seen within a day, by name."""
        seen = await self._answered(self._store.nodes())
        held = await self._answered(self._store.count_leases())
        return sorted((self._view(node, held[node.name]) for node in seen), key=lambda v: v.node)

    async def steal(
        self, run_id: str, fence: int, *, after_seconds: float | None = None, target: str = ""
    ) -> Stolen:
        """Take a lease back from its holder if its fence is still `fence`.

        The holder is told at its next renewal. Others may claim once it has released, or after
        `after_seconds` (default: `steal_seconds`); `target` (a node) before all others.
        """
        after = self.steal_seconds if after_seconds is None else after_seconds
        stolen = await self._answered(
            self._store.steal(run_id, fence, after_seconds=after, target=target, why="operator")
        )
        if stolen.status is StealStatus.FREED:
            log.warning("lease_stolen", run_id=run_id, fence=stolen.fence, holder=stolen.holder,
                        target=target or None)  # fmt: skip
        return stolen

    async def release(self, run_id: str, fence: int, *, force: bool) -> Freed:
        """Free a lease whose holder is gone, if its fence is still `fence`; others may claim now.

        `force`: also while the holder is heard of. Two trainings may live then until it renews.
        """
        limit = self._settings.silent_after_seconds
        freed = await self._answered(self._store.free(run_id, fence, limit, force=force))
        if freed.status is FreeStatus.FREED:
            log.warning("lease_released_by_operator", run_id=run_id, fence=freed.fence,
                        holder=freed.holder, silent_seconds=freed.silent_seconds,
                        forced=force)  # fmt: skip
        return freed

    @property
    def steal_seconds(self) -> float:
        """How long others wait for the holder of a stolen lease: one renewal and the grace."""
        return self._settings.renew_seconds + self._settings.grace_seconds

    def _view(self, node: NodeSeen, held: int) -> NodeView:
        facts = node.facts
        return NodeView(
            node=node.name,
            alive=node.silent_seconds <= self._settings.silent_after_seconds,
            silent_seconds=node.silent_seconds,
            last_seen=node.seen_at,
            sweep=str(self._sweep),
            version=facts.version,
            state=facts.state,
            slots=facts.slots,
            busy=facts.busy,
            pid=facts.pid,
            leases_held=held,
        )

    async def _answered(self, exchange: Awaitable[T]) -> T:
        try:
            return await exchange
        except TROUBLE as error:
            raise PeerError(f"Redis: {explain(error, self._settings)}") from error
