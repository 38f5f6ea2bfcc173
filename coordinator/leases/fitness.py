"""Which server is good enough for leases: asked at the first contact, and ever after.

A fail-over, a Cluster's new primary or a person with CONFIG SET can put a worse one in its place.
Owns what is demanded of a server. It must never stop a training.
"""

import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import anyio
import redis.exceptions as redis_errors
from redis.asyncio import RedisCluster

from coordinator.core.lease import LeaseSettings
from coordinator.errors import PeerError, UserError
from coordinator.leases.addresses import WHERE
from coordinator.leases.connection import REFUSALS, Client, follow_primary, telling
from coordinator.leases.sight import Sight
from coordinator.leases.store import TROUBLE

OLDEST: Final = (7, 0)
"""First Redis whose scripts may carry flags (`allow-oom`); every Valkey has them."""
MINIMAL_ACL: Final = (
    "resetkeys",
    "~wandb-coordinator:1:*",
    "resetchannels",
    "-@all",
    # asked directly
    "+info",
    "+eval",
    "+evalsha",
    "+xread",
    # called by the scripts
    "+time",
    "+get",
    "+set",
    "+exists",
    "+pexpire",
    "+hset",
    "+hsetnx",
    "+hmget",
    "+hincrby",
    "+hdel",
    "+zadd",
    "+zrem",
    "+zrange",
    "+zrangebyscore",
    "+zcard",
    "+zremrangebyscore",
    "+xadd",
)
"""What a Redis user needs at least, as rules of ACL SETUSER; docs/leases.md shows the same."""
SECTIONS: Final = ("server", "memory", "replication", "cluster")
"""All that is judged. Asked by each node at each renewal, and the whole INFO costs Redis more than
the renewals of a node with eight leases do (scripts/scale)."""
CLUSTER_ACL: Final = ("+cluster|slots", "+command", "+asking")
"""What redis-py's Cluster client asks besides."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that will do; `run_id` is new with each start of a server."""

    name: str
    run_id: str


async def check_server(client: Client, key: str) -> Server:
    """The server that holds `key`.

    Raises UserError for a server that never will do, PeerError for one that may do later, and what
    redis-py raises when there is no answer.
    """
    try:
        return _judge(await _facts(client, key), cluster=isinstance(client, RedisCluster))
    except TROUBLE as error:
        if (fault := _fault_of_the_user(error)) is not None:
            raise UserError(f"{WHERE}: {fault}") from error
        raise


async def _facts(client: Client, key: str) -> dict[str, Any]:
    where: dict[str, Any] = {}
    if isinstance(client, RedisCluster):
        await client.initialize()
        where["target_nodes"] = client.get_node_from_key(key)
    else:
        await follow_primary(client)
    try:
        return dict(await client.info(*SECTIONS, **where))
    except redis_errors.ResponseError as error:
        if not str(error).startswith("syntax error"):
            raise
        return dict(await client.info(**where))  # older than 7.0: one section or all


def _fault_of_the_user(error: BaseException) -> str | None:
    cause = telling(error)
    if isinstance(cause, REFUSALS):
        return f"Redis refuses the user or password: {cause}"
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return (
                f"the certificate of Redis is not trusted ({seen.verify_message}); name its "
                "authority with ?ssl_ca_certs=FILE"
            )
        if isinstance(seen, redis_errors.RedisClusterException) and "not enabled" in str(seen):
            return "this Redis is no Cluster; give it as redis:// or rediss://"
        seen = seen.__cause__ or seen.__context__
    return None


def _judge(facts: dict[str, Any], *, cluster: bool) -> Server:
    name, version = _identify(facts)
    if name == "Redis" and _numbers(version) < OLDEST:
        raise UserError(
            f"{WHERE}: Redis {version} is too old; leases need Redis 7.0 or Valkey or later"
        )
    policy = str(facts.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        raise UserError(
            f"{WHERE}: maxmemory-policy is {policy}, which lets Redis throw leases away; "
            "set it to noeviction"
        )
    if int(facts.get("cluster_enabled", 0)) and not cluster:
        raise UserError(
            f"{WHERE}: this is a node of a Redis Cluster; give the Cluster as redis+cluster://"
        )
    if facts.get("role") == "slave":
        raise PeerError("this server is a replica and takes no writes")
    return Server(f"{name} {version}", str(facts.get("run_id", "")))


def _identify(facts: dict[str, Any]) -> tuple[str, str]:
    if "valkey_version" in facts:
        return "Valkey", str(facts["valkey_version"])
    return "Redis", str(facts.get("redis_version", "0"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


class FitnessWatch:
    """Asks again after each round of renewals. Level-triggered: it needs no news of a fail-over.

    After, never before: a daemon that was stopped must renew before it does anything else.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        sight: Sight,
        settings: LeaseSettings,
        *,
        round_ended: Callable[[], Awaitable[None]],
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when another server answers than before."""
        self._client = client
        self._key = key
        self._sight = sight
        self._settings = settings
        self._round_ended = round_ended
        self._on_change = on_change
        self._run_id = ""

    async def first(self) -> Server:
        """As `check_server`, within one time-out."""
        with anyio.fail_after(self._settings.timeout_seconds):
            server = await check_server(self._client, self._key)
        self._run_id = server.run_id
        return server

    async def run(self) -> None:
        """Watch for ever. What does not answer is the renewals' to tell."""
        while True:
            await self._round_ended()
            before = self._run_id
            try:
                server = await self.first()
            except UserError as error:
                self._sight.unfit(str(error))
            except (*TROUBLE, PeerError):
                continue
            else:
                self._sight.fit()
                if server.run_id != before:
                    self._sight.changed(server.name)
                    self._on_change()
