"""What the supervisor may ask of leases, whichever kind is in use.

Owns the protocol that `LeaseKeeper` and `NoLeases` share. It must never hold code.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

import anyio
from anyio.abc import TaskStatus

from coordinator.core.lease import Claim, Dropped, Health, HolderState, Lease
from coordinator.core.model import CommandKind, Outcome
from coordinator.core.protocol import LeaseView
from coordinator.leases.answers import OfferStatus, Rescue, Waiting
from coordinator.leases.operations import Operations
from coordinator.leases.registry import NodeFacts
from coordinator.leases.shared import Shared
from coordinator.leases.sweep_hold import SweepHold

OnFenced = Callable[[Lease], Coroutine[Any, Any, None]]
"""Another owner is known: kill the whole tree at once, then call `forget`. Called once a lease."""
OnStop = Callable[[Lease, HolderState], Coroutine[Any, Any, None]]
"""Stop gracefully, then release. The state says why: FREED (an operator took it back) or
SURRENDERED (strict mode, Redis out of sight for too long). Called once a lease."""


class Leases(Protocol):
    """The lease layer of one node for one sweep."""

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close` or cancellation; started once Redis answered and the journal is done.

        Raises UserError when this Redis will never do.
        """

    def adopt(self, alive: Iterable[str], ended: Mapping[str, Outcome]) -> None:
        """Before `run`: which journalled tokens have a living tree, and how others ended."""

    async def acquire(self, claim: Claim) -> Lease | Dropped:
        """The lease, or why the claim is dropped. Waits as long as the conflict lasts.

        Raises PeerError when the layer is closing.
        """

    def stands(self, token: str) -> bool:
        """Whether a training may start under it: it may have been lost since it was acquired."""

    async def release(self, token: str, outcome: Outcome) -> None:
        """The tree is gone. Returns when answered or after one time-out; retried until answered."""

    async def closing(self, token: str) -> None:
        """The training is ending: a claim for its run waits from now on. Never raises."""

    async def offer(
        self, run_id: str, delay_seconds: float, most: int, known: tuple[str, str] = ("", "")
    ) -> OfferStatus:
        """Queue a run for any node to train again. Raises PeerError when Redis is silent.

        `known`: program and arguments (JSON), for a run that never had a lease.
        """

    async def take(self) -> Rescue | None:
        """A run that is due in the rescue queue; None when none is, or Redis does not answer."""

    async def waiting(self) -> Waiting:
        """What may have to be trained yet. Raises PeerError when Redis does not answer."""

    async def rest(self, seconds: float) -> None:
        """Return after `seconds`, or when another node has given up a run that the server hands out
        again: time to ask for work. Never raises."""

    async def forget(self, token: str) -> None:
        """The tree of a fenced lease is gone; the lease is not ours to release."""

    def describe(self, facts: Callable[[], NodeFacts]) -> None:
        """Before `run`: what this node says of itself at each renewal; it must not raise."""

    @property
    def operations(self) -> Operations | None:
        """What an operator may look at and do; None when leases are off."""

    @property
    def sweep_hold(self) -> SweepHold | None:
        """The right to change the sweep's own state; None when leases are off."""

    @property
    def shared(self) -> Shared | None:
        """What the nodes know together besides leases; None when leases are off."""

    def health(self) -> Health:
        """How well Redis is seen."""

    def admits(self, kind: CommandKind | None) -> bool:
        """Whether new claims may be made now."""

    async def list_leases(self) -> list[LeaseView]:
        """All leases of the sweep. Raises PeerError when Redis does not answer."""

    async def close(self, bound_seconds: float) -> None:
        """Flush pending releases for at most `bound_seconds` and end `run`."""

    @property
    def leases_held(self) -> int:
        """How many leases this node holds."""
