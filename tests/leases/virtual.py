"""The real scripts on a virtual clock: a key of the server takes the place of its time."""

from dataclasses import dataclass, field
from itertools import count

from redis.asyncio import Redis

from coordinator.core.model import CommandKind, Outcome, SweepPath
from coordinator.leases import Claim, Lease, LeaseSettings
from coordinator.leases.answers import AcquireAnswer, Granted, ReleaseStatus, Renewed
from coordinator.leases.keys import Keys
from coordinator.leases.scripts import Scripts
from coordinator.leases.store import Store

TTL, GRACE = 60.0, 30.0
SETTINGS = LeaseSettings(ttl_seconds=TTL, grace_seconds=GRACE, timeout_seconds=10.0)
START_MS = 1_700_000_000_000
FOREVER = 10**15


def clock_script(key: str) -> str:
    """What replaces clock.lua."""
    return f"local function now_ms() return tonumber(redis.call('GET', '{key}')) end\n"


@dataclass
class Virtual:
    """One sweep on a virtual clock, seen by as many nodes as one likes."""

    client: Redis
    sweep: SweepPath
    now_ms: int = START_MS
    _tokens: "count[int]" = field(default_factory=count)

    @property
    def keys(self) -> Keys:
        """The sweep's keys."""
        return Keys(self.sweep)

    def store(self, node: str = "node-a") -> Store:
        """The store as `node` uses it."""
        scripts = Scripts(clock_script(f"clock:{{{self.sweep}}}"))
        return Store(self.client, self.keys, node, SETTINGS, scripts)

    async def set(self, now_ms: int) -> None:
        """The server's clock shows `now_ms`."""
        self.now_ms = now_ms
        await self.client.set(f"clock:{{{self.sweep}}}", now_ms)

    async def advance(self, seconds: float) -> None:
        """Time goes by (or back)."""
        await self.set(self.now_ms + round(seconds * 1000))

    async def settled(self) -> "Virtual":
        """A Redis that has been in use for longer than the settling."""
        await self.set(START_MS)
        await self.client.set(self.keys.epoch, START_MS - 10**9)
        return self

    async def acquire(
        self,
        run_id: str = "r1",
        token: str | None = None,
        *,
        node: str = "node-a",
        kind: CommandKind = CommandKind.RESUME,
        hint: int = 0,
        not_after_ms: int = FOREVER,
    ) -> tuple[str, AcquireAnswer]:
        """The token and the answer."""
        token = token or f"t{next(self._tokens)}"
        claim = Claim(run_id, kind, 0, "train.py", {"a": 1})
        answer = await self.store(node).acquire(claim, token, hint, not_after_ms=not_after_ms)
        return token, answer

    async def granted(self, run_id: str = "r1", *, node: str = "node-a", hint: int = 0) -> Lease:
        """Acquire and insist."""
        token, answer = await self.acquire(run_id, node=node, hint=hint)
        assert isinstance(answer, Granted), answer
        return Lease(run_id, CommandKind.RESUME, token, answer.fence, 0)

    async def renew(self, *leases: Lease, node: str = "node-a") -> list[Renewed]:
        """One renewal by `node`."""
        return await self.store(node).renew_many(leases, len(leases))

    async def release(
        self, lease: Lease, outcome: Outcome | None = None, *, node: str = "node-a"
    ) -> ReleaseStatus:
        """One release by `node`."""
        return (await self.store(node).release(lease, outcome)).status
