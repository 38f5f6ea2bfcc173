"""The twin without leases: grants everything, remembers what it granted, knows no other node.

Owns nothing outside this process. For `[redis] url = "off"` and for the test that shows that the
judge of overlaps bites. It must never be used when a second node works on the sweep.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from uuid import uuid4

import anyio
import structlog
from anyio.abc import TaskStatus

from coordinator.core.lease import Claim, Dropped, Health, Lease
from coordinator.core.model import CommandKind, Outcome
from coordinator.core.protocol import LeaseView
from coordinator.leases.answers import OfferStatus, Rescue, Waiting
from coordinator.leases.registry import NodeFacts

log = structlog.get_logger()


class NoLeases:
    """See `api.Leases` for what each method would promise."""

    def __init__(self, node: str) -> None:
        self._node = node
        self.operations: None = None
        """There is nothing to operate on."""
        self.sweep_hold: None = None
        """There is nobody to agree with."""
        self.shared: None = None
        """There is nobody to share with."""
        self._fences = itertools.count(1)
        self._held: dict[str, Lease] = {}
        self._closing = anyio.Event()

    def adopt(self, alive: Iterable[str], ended: Mapping[str, Outcome]) -> None:
        """There is no journal to adopt from."""

    def describe(self, facts: Callable[[], NodeFacts]) -> None:
        """Nobody listens."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Wait for the end."""
        log.warning("leases_disabled")
        task_status.started()
        await self._closing.wait()

    async def acquire(self, claim: Claim) -> Lease | Dropped:
        """Granted."""
        lease = Lease(claim.run_id, claim.kind, uuid4().hex, next(self._fences), claim.slot)
        self._held[lease.token] = lease
        return lease

    def stands(self, token: str) -> bool:
        """As long as it is held."""
        return token in self._held

    async def release(self, token: str, outcome: Outcome) -> None:
        """Forgotten."""
        self._held.pop(token, None)

    async def closing(self, token: str) -> None:
        """Nobody waits."""

    async def offer(
        self, run_id: str, delay_seconds: float, most: int, known: tuple[str, str] = ("", "")
    ) -> OfferStatus:
        """There is no queue."""
        return OfferStatus.UNKNOWN

    async def take(self) -> Rescue | None:
        """There is no queue."""
        return None

    async def waiting(self) -> Waiting:
        """There is no queue."""
        return Waiting(0, 0)

    async def rest(self, seconds: float) -> None:
        """There is no other node."""
        await anyio.sleep(seconds)

    async def forget(self, token: str) -> None:
        """Forgotten."""
        self._held.pop(token, None)

    def health(self) -> Health:
        """Nothing can be wrong with nothing."""
        return Health("ok", "leases are off", 0.0)

    def admits(self, kind: CommandKind | None) -> bool:
        """Until closed."""
        return not self._closing.is_set()

    async def list_leases(self) -> list[LeaseView]:
        """This node's runs, without times."""
        return [
            LeaseView(
                run_id=lease.run_id,
                owner=self._node,
                slot=lease.slot,
                fence=lease.fence,
                state="held",
                kind=lease.kind,
                age_seconds=0.0,
                expires_in_seconds=0.0,
            )
            for lease in self._held.values()
        ]

    async def close(self, bound_seconds: float) -> None:
        """End `run`."""
        self._closing.set()

    @property
    def leases_held(self) -> int:
        """How many runs were granted and not released."""
        return len(self._held)
