"""Connections to Redis: the URL, clients with time-outs fit for leases, and the check at start.

Owns what redis-py is told and which server is good enough. It must never show a password, and never
let the client library retry: a retried write runs twice (measured; LEASES rule 2).
"""

import re
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import redis.exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from coordinator.errors import ConfigError, PeerError, UserError

WHERE: Final = "[redis] url"
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
_REFUSALS: Final = (redis_errors.AuthenticationError, redis_errors.NoPermissionError)
_ANSWERS: Final = (
    *_REFUSALS,
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
_LATER: Final = re.compile(r"(redis|rediss|valkey|valkeys)\+(sentinel|cluster)")
_SCHEMES: Final = ("redis", "rediss", "unix")


def redacted_url(url: str) -> str:
    """`url` without its password, be it before the host or among the options."""
    parts = urlsplit(url)
    netloc = parts.netloc
    if "@" in netloc:
        credentials, host = netloc.rsplit("@", 1)
        user, colon, _ = credentials.partition(":")
        netloc = f"{user}{':***' if colon else ''}@{host}"
    query = re.sub(r"(?i)((?:^|&)[^=&]*password=)[^&]*", r"\1***", parts.query)
    text = urlunsplit((parts.scheme, netloc, parts.path, query, parts.fragment))
    return text if parts.scheme != "unix" or netloc else text.replace("unix:/", "unix:///", 1)


def check_url(url: str) -> None:
    """Raises ConfigError for a URL that cannot be used."""
    scheme = urlsplit(url).scheme
    if _LATER.fullmatch(scheme):
        raise ConfigError(
            WHERE, f"{scheme}:// is not supported yet; give the primary's redis:// address"
        )
    if scheme not in _SCHEMES:
        wanted = ", ".join(f"{name}://" for name in _SCHEMES)
        raise ConfigError(WHERE, f'{redacted_url(url)!r} is none of {wanted}, "embedded", "off"')


def open_client(url: str, *, timeout_seconds: float, connections: int) -> Redis:
    """A client that connects when first used. Raises ConfigError for an unusable URL."""
    check_url(url)
    options: dict[str, Any] = {
        "decode_responses": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        **_SAY_NOTHING,
    }
    if urlsplit(url).scheme != "unix":
        options["socket_keepalive"] = True
    try:
        pool = BlockingConnectionPool.from_url(
            url, max_connections=connections, timeout=timeout_seconds, **options
        )
    except ValueError as error:
        raise ConfigError(WHERE, str(error)) from error
    return Redis.from_pool(pool)


def telling(error: BaseException) -> BaseException:
    """The server's own answer behind `error`: redis-py hides what went wrong in its handshake."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, _ANSWERS):
            return seen
        seen = seen.__context__
    return error


async def check_server(client: Redis) -> str:
    """Name and version of a server that leases can rely on.

    Raises UserError for a server that never will do, PeerError for one that may do later, and what
    redis-py raises when there is no answer.
    """
    try:
        facts: dict[str, Any] = await client.info("everything")
    except redis_errors.RedisError as error:
        cause = telling(error)
        if isinstance(cause, _REFUSALS):
            raise UserError(f"{WHERE}: Redis refuses the user or password: {cause}") from error
        raise
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
    if int(facts.get("cluster_enabled", 0)):
        raise UserError(f"{WHERE}: this is a Redis Cluster node, which is not supported yet")
    if facts.get("role") == "slave":
        raise PeerError("this server is a replica and takes no writes")
    return f"{name} {version}"


def _identify(facts: dict[str, Any]) -> tuple[str, str]:
    if "valkey_version" in facts:
        return "Valkey", str(facts["valkey_version"])
    return "Redis", str(facts.get("redis_version", "0"))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
