"""Connections to Redis: clients with time-outs fit for leases, whatever form Redis has.

Owns what redis-py is told. It must never let the client library retry: a retried write runs twice
(measured; LEASES rule 2).
"""

import os
from importlib.util import find_spec
from inspect import signature
from typing import Any, Final

import redis.exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff

from coordinator.errors import ConfigError
from coordinator.leases.addresses import WHERE, Address, read_address

Client = Redis | RedisCluster
REFUSALS: Final = (redis_errors.AuthenticationError, redis_errors.NoPermissionError)
_ANSWERS: Final = (
    *REFUSALS,
    redis_errors.BusyLoadingError,
    redis_errors.OutOfMemoryError,
    redis_errors.ReadOnlyError,
)
_SAY_NOTHING: Final[dict[str, Any]] = (
    {"driver_info": None}
    if find_spec("redis.driver_info")
    else {"lib_name": None, "lib_version": None}
)
"""No CLIENT SETINFO at each new connection: with it a link that is slow, but well within the
time-out, cannot be taken up again once it has broken, since one deadline holds for greeting and
request (found by scripts/nemesis). redis-py has renamed the options."""
_OLD_CLUSTER: Final[dict[str, Any]] = (
    {"cluster_error_retry_attempts": 0, "connection_error_retry_attempts": 0}
    if "connection_error_retry_attempts" in signature(RedisCluster.__init__).parameters
    else {}
)
"""Before redis-py 6 the Cluster client counted its retries in these; now `retry` does."""
_SPARE_CONNECTIONS: Final = 10
"""A Cluster client does not wait for a free connection, it fails: so some more than are used."""


_FILES: Final = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}
"""A missing one would look like a server that is away."""


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Waits for a free connection, and closes those to the Sentinels with its own."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # not so when the primary has moved
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


def open_client(url: str, *, timeout_seconds: float, connections: int) -> Client:
    """A client that connects when first used. Raises ConfigError for an unusable URL."""
    address = read_address(url)
    options: dict[str, Any] = {
        "decode_responses": True,
        "protocol": 2,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        **_SAY_NOTHING,
        **address.options,
    }
    for name in _FILES & options.keys():
        if not os.access(options[name], os.R_OK):
            raise ConfigError(WHERE, f"{name}: {options[name]} cannot be read")
    if "path" not in options:
        options.setdefault("socket_keepalive", True)
    try:
        match address.kind:
            case "server":
                return _server(options, timeout_seconds, connections)
            case "sentinel":
                return _sentinel(address, options, timeout_seconds, connections)
            case "cluster":
                return _cluster(address, options, timeout_seconds, connections)
    except (ValueError, TypeError) as error:
        raise ConfigError(WHERE, str(error)) from error


def _server(options: dict[str, Any], timeout_seconds: float, connections: int) -> Redis:
    return _on(BlockingConnectionPool(**_limits(timeout_seconds, connections) | options))


def _sentinel(
    address: Address, options: dict[str, Any], timeout_seconds: float, connections: int
) -> Redis:
    """All Sentinels must fit into one time-out: the first ones may be black holes."""
    share = timeout_seconds / (len(address.hosts) + 1)
    own = {"socket_timeout": share, "socket_connect_timeout": share, "retry": _never()}
    own |= _SAY_NOTHING | (address.sentinel_options or {})
    manager = Sentinel(address.hosts, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    secure = options.pop("connection_class", None) is SSLConnection
    options["connection_class"] = (
        SentinelManagedSSLConnection if secure else SentinelManagedConnection
    )
    options.pop("host", None)
    limits = _limits(timeout_seconds, connections)
    pool = _SentinelPool(address.service, manager, **limits | options)  # type: ignore[no-untyped-call]
    return _on(pool)


def _cluster(
    address: Address, options: dict[str, Any], timeout_seconds: float, connections: int
) -> RedisCluster:
    """As with Sentinels, nodes that are black holes must leave time to ask the others."""
    options["socket_connect_timeout"] = timeout_seconds / (len(address.hosts) + 1)
    options["ssl"] = options.pop("connection_class", None) is SSLConnection
    options.pop("host", None)
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in address.hosts],
        retry=_never(),
        max_connections=connections + _SPARE_CONNECTIONS,
        **_OLD_CLUSTER,
        **options,
    )


def _limits(timeout_seconds: float, connections: int) -> dict[str, Any]:
    return {"max_connections": connections, "timeout": timeout_seconds, "retry": _never()}


def _on(pool: BlockingConnectionPool) -> Redis:
    pool.make_connection()  # type: ignore[no-untyped-call] # an unknown option is told now
    return Redis.from_pool(pool)


def _never() -> Retry:
    return Retry(NoBackoff(), 0)


async def follow_primary(client: Client) -> None:
    """Ask the Sentinels, if there are any, who is primary now; redis-py then leaves the old one.

    Without this a client stays with an old primary that still answers: the Sentinels turn it into a
    replica only after several seconds.
    """
    if isinstance(client, Redis) and isinstance(client.connection_pool, _SentinelPool):
        await client.connection_pool.get_master_address()  # type: ignore[no-untyped-call]


def telling(error: BaseException) -> BaseException:
    """The server's own answer behind `error`: redis-py hides what went wrong in its handshake."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _ANSWERS):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error
