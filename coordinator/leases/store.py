"""The lease store: each script as one typed call with one deadline.

Owns the arguments of the scripts and the estimate of the server's clock. It must never retry and
never decide: an exchange that fails has an unknown outcome, which is the caller's to settle.
"""

import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import msgspec
import redis.exceptions as redis_errors

from coordinator.core.cluster import LeaseDetailView
from coordinator.core.lease import Claim, DropReason, Lease, LeaseSettings
from coordinator.core.model import Outcome
from coordinator.core.protocol import LeaseView
from coordinator.leases.answers import (
    AcquireAnswer,
    OfferStatus,
    Released,
    ReleaseStatus,
    Renewed,
    Rescue,
    StealStatus,
    Stolen,
    Waiting,
    read_acquire,
    read_list,
    read_renewals,
    read_rescue,
)
from coordinator.leases.clock import ServerClock
from coordinator.leases.connection import Client
from coordinator.leases.keys import Keys
from coordinator.leases.registry import (
    REGISTRY_FIELDS,
    Freed,
    NodeFacts,
    NodeSeen,
    read_detail,
    read_freed,
    read_nodes,
)
from coordinator.leases.scripts import Scripts

TROUBLE: Final = (
    redis_errors.RedisError,
    redis_errors.RedisClusterException,
    OSError,
    TimeoutError,
)
"""What an exchange can fail with. None of these is ever a reason to stop a training."""
CHUNK: Final = 128
"""Leases renewed in one call: 100 take 0.5 ms, and a script holds up everybody else (LEASES)."""
_BROKEN_AT_MOST: Final = 2
_T = TypeVar("_T")
_DAY: Final = 86_400.0
REGISTRY_SECONDS: Final = 30 * _DAY
_VOID: Final = 900.0
_HIDDEN: Final = 60.0
_STREAM_LENGTH: Final = 1000
_PAGE: Final = 100
"""Leases or nodes read in one call, which takes less than a millisecond."""


async def once_more(call: Callable[[], Awaitable[_T]]) -> _T:
    """`call()`, and again at once if its connection broke: idle ones may have been dead for long.

    Only for what may run twice at any later time: a renewal, a list. An acquire may not.
    """
    for _ in range(_BROKEN_AT_MOST):
        with suppress(redis_errors.ConnectionError):
            return await call()
    return await call()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


class Store:
    """The scripts of one sweep, called in the name of one node."""

    def __init__(
        self,
        client: Client,
        keys: Keys,
        node: str,
        settings: LeaseSettings,
        scripts: Scripts,
        *,
        settle_seconds: float | None = None,
    ) -> None:
        """`settle_seconds` defaults to that of the settings."""
        self._client = client
        self._keys = keys
        self._node = node
        self._settings = settings
        self._scripts = scripts
        self._settle = settings.settle_seconds if settle_seconds is None else settle_seconds
        self.clock = ServerClock()
        self.epoch: int | None = None
        """Server time of the first use of its data, as of the last answer."""
        self.facts: Callable[[], NodeFacts] = NodeFacts
        """What this node says of itself at each renewal; must neither wait nor raise."""

    async def acquire(
        self, claim: Claim, token: str, hint: int, *, not_after_ms: int | None = None
    ) -> AcquireAnswer:
        """Ask for the lease of `claim.run_id`; `hint` is the highest fence known here."""
        keys, cfg = self._keys, self._settings
        limit = self.clock.not_after_ms(cfg.timeout_seconds)
        reply = await self._run(
            "acquire",
            [
                keys.lease(claim.run_id),
                keys.run(claim.run_id),
                keys.fence,
                keys.index,
                keys.stream,
                keys.epoch,
                keys.void(token),
                keys.rescue,
            ],
            [
                token,
                self._node,
                claim.slot,
                claim.kind.value,
                claim.run_id,
                _ms(cfg.ttl_seconds),
                _ms(cfg.grace_seconds),
                _ms(self._settle),
                limit if not_after_ms is None else not_after_ms,
                hint,
                _ms(_DAY),
                _ms(REGISTRY_SECONDS),
                _STREAM_LENGTH,
                claim.program,
                json.dumps(claim.args, sort_keys=True),
            ],
        )
        return read_acquire(reply)

    async def renew_many(self, leases: Sequence[Lease], held: int) -> list[Renewed]:
        """Renew `leases` (at most `CHUNK`) and report this node alive with `held` leases."""
        keys, cfg = self._keys, self._settings
        key_list = [keys.fence, keys.index, keys.stream, keys.epoch]
        key_list += [keys.nodes, keys.node(self._node)]
        facts = msgspec.json.encode(msgspec.structs.replace(self.facts(), leases=held)).decode()
        args: list[str | int] = [self._node, _ms(cfg.ttl_seconds), _ms(cfg.grace_seconds)]
        args += [_ms(_DAY), _STREAM_LENGTH, _ms(_DAY), facts]
        for lease in leases:
            key_list += [keys.lease(lease.run_id), keys.void(lease.token)]
            args += [lease.run_id, lease.token, lease.fence, lease.kind.value, lease.slot]
        return read_renewals(await self._run("renew_many", key_list, args))

    async def release(
        self, lease: Lease, outcome: Outcome | None, dropped: DropReason | None = None
    ) -> Released:
        """End the claim of `lease`, held or not; its fence is 0 when unknown."""
        keys = self._keys
        reply = await self._run(
            "release",
            [
                keys.lease(lease.run_id),
                keys.run(lease.run_id),
                keys.fence,
                keys.index,
                keys.stream,
                keys.epoch,
                keys.void(lease.token),
                keys.rescue,
                keys.idle,
            ],
            [
                lease.token,
                self._node,
                lease.run_id,
                lease.fence,
                "" if outcome is None else outcome.value,
                _ms(_DAY),
                _ms(REGISTRY_SECONDS),
                _STREAM_LENGTH,
                _ms(_VOID),
                "" if dropped is None else dropped.value,
                keys.wake_prefix,
            ],
        )
        return Released(ReleaseStatus(reply[0]), bool(int(reply[1])))

    async def rest(self, seconds: float) -> None:
        """Say that this node has a free slot and rests for so long."""
        await self._run("idle", [self._keys.idle, self._keys.epoch], [self._node, _ms(seconds)])

    async def closing(self, lease: Lease) -> None:
        """Say that the training of `lease` is ending, so that claims wait for it."""
        keys = self._keys
        await self._run("closing", [keys.lease(lease.run_id), keys.epoch], [lease.token])

    async def offer(
        self, run_id: str, delay_seconds: float, most: int, known: tuple[str, str] = ("", "")
    ) -> tuple[OfferStatus, int]:
        """Queue a run for any node, at most `most` times (0: not counted); and how often so far.

        `known`: program and arguments (JSON), for a run that never had a lease.
        """
        keys = self._keys
        reply = await self._run(
            "offer",
            [keys.rescue, keys.run(run_id), keys.epoch],
            [run_id, _ms(delay_seconds), most, *known, _ms(REGISTRY_SECONDS)],
        )
        return OfferStatus(reply[0]), int(reply[1])

    async def take(self, *, count_only: bool = False) -> tuple[Waiting, Rescue | None]:
        """What waits, and one run that is due in the queue, hidden from others for a while."""
        keys = self._keys
        reply = await self._run(
            "take",
            [keys.rescue, keys.index, keys.epoch],
            [
                _ms(_HIDDEN),
                keys.run(""),
                keys.lease_prefix,
                0 if count_only else 1,
                _ms(self._settings.grace_seconds),
            ],
        )
        return Waiting(int(reply[0]), int(reply[1])), read_rescue(reply)

    async def steal(
        self, run_id: str, fence: int, *, after_seconds: float, target: str, why: str
    ) -> Stolen:
        """Take the lease back if its fence is still `fence`; `target` is a node name or ''.

        Others may claim `after_seconds` from now at the latest, `target` one TTL before them.
        """
        keys = self._keys
        reply = await self._run(
            "steal",
            [keys.lease(run_id), keys.stream, keys.epoch],
            [
                run_id,
                fence,
                _ms(after_seconds),
                target,
                _ms(self._settings.ttl_seconds),
                _ms(_DAY),
                _STREAM_LENGTH,
                why,
                keys.wake_prefix,
            ],
        )
        return Stolen(StealStatus(reply[0]), int(reply[1]), reply[2])

    async def free(self, run_id: str, fence: int, silent_seconds: float, *, force: bool) -> Freed:
        """End a lease if its fence is still `fence` and its holder was silent for so long."""
        keys = self._keys
        reply = await self._run(
            "free",
            [
                keys.lease(run_id),
                keys.run(run_id),
                keys.index,
                keys.stream,
                keys.epoch,
                keys.rescue,
            ],
            [
                run_id,
                fence,
                _ms(silent_seconds),
                int(force),
                _ms(_DAY),
                _STREAM_LENGTH,
                keys.node(""),
                keys.wake_prefix,
            ],
        )
        return read_freed(reply)

    async def show(self, run_id: str) -> LeaseDetailView | None:
        """The lease of a run and what is known of the run; None without a record."""
        keys = [self._keys.lease(run_id), self._keys.run(run_id)]
        args = [run_id, *REGISTRY_FIELDS]
        return read_detail((await once_more(partial(self._raw, "show", keys, args)))[1:])

    async def nodes(self) -> list[NodeSeen]:
        """The nodes of the registry, the latest seen first."""
        found = dict[str, NodeSeen]()
        for offset in itertools.count(0, _PAGE):
            args: list[str | int] = [offset, _PAGE, self._keys.node("")]
            reply = await once_more(partial(self._raw, "nodes", [self._keys.nodes], args))
            page = read_nodes(int(reply[0]), reply[1:])
            found |= {node.name: node for node in page if node.name not in found}
            if len(page) < _PAGE:
                break
        return list(found.values())

    async def list_leases(self) -> list[LeaseView]:
        """All leases of the sweep that stand, by deadline."""
        found = dict[str, LeaseView]()
        async for page in self._pages(counted=False):
            for view in read_list(page):
                found.pop(view.run_id, None)  # renewed since the page before: it stands later now
                found[view.run_id] = view
        return list(found.values())

    async def count_leases(self) -> Counter[str]:
        """How many leases stand, by owner; one that is renewed meanwhile may count twice."""
        counts = Counter[str]()
        async for page in self._pages(counted=True):
            counts.update(dict(zip(page[::2], map(int, page[1::2]), strict=True)))
        return counts

    async def _pages(self, *, counted: bool) -> AsyncIterator[list[Any]]:
        """What `list.lua` answers, page by page without its head."""
        deadline, run, keys = "-inf", "", self._keys
        while True:
            args: list[str | int] = [deadline, run, _PAGE, keys.lease_prefix, int(counted)]
            reply = await once_more(partial(self._raw, "list", [keys.index], args))
            self.clock.set(int(reply[0]))
            yield reply[4:]
            if int(reply[1]) < _PAGE:
                return
            deadline, run = reply[2], reply[3]

    async def call(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> list[Any]:
        """A script of another module: its answer without its head."""
        return await self._run(name, keys, args)

    async def _run(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> list[Any]:
        """The answer without its head, the server's time and epoch."""
        reply = await self._raw(name, keys, args)
        self.clock.set(int(reply[0]))
        self.epoch = int(reply[1])
        return reply[2:]

    async def _raw(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> list[Any]:
        with anyio.fail_after(self._settings.timeout_seconds):
            return await self._scripts.run(self._client, name, keys, args)
