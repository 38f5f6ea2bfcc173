"""Addresses of Redis: one server, a primary behind Sentinels, or a Cluster.

Owns the forms of `[redis] url`. redis-py reads the options of an address, but has no form for more
than one host; the forms with `+sentinel` and `+cluster` are those of other programs (Prefect, and
the Python package limits). It must never connect, and never show a password.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from redis.asyncio.connection import parse_url

from coordinator.errors import ConfigError

WHERE: Final = "[redis] url"
_SCHEME: Final = re.compile(r"(rediss?)(?:\+(sentinel|cluster))?|unix")
_PARTS: Final = re.compile(
    r"(?P<scheme>[^:/?#]*)://(?:(?P<user>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<path>[^?#]*)(?P<query>.*)",
    re.DOTALL,
)
_HOST: Final = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")
_LAST_PORT: Final = 0xFFFF
_PORTS: Final = {"sentinel": 26379, "cluster": 6379}

Host = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Address:
    """`options` are keyword arguments for redis-py's connections to a data node."""

    kind: Literal["server", "sentinel", "cluster"]
    options: dict[str, Any]
    hosts: tuple[Host, ...] = ()
    """Sentinels, or nodes of the Cluster to begin with."""
    service: str = ""
    """What the Sentinels call the primary."""
    sentinel_options: dict[str, Any] | None = None
    """As `options`, for the Sentinels themselves."""


def redacted_url(url: str) -> str:
    """`url` without its passwords, be they before the host or among the options."""
    url = re.sub(r"(://[^:/?#@]*):[^?#]*@", r"\1:***@", url, count=1)
    return re.sub(r"(?i)([?&][^=&#]*password=)[^&#]*", r"\1***", url)


def read_address(url: str) -> Address:
    """Raises ConfigError for a URL that cannot be used."""
    parts = _PARTS.fullmatch(url)
    scheme = _SCHEME.fullmatch(parts["scheme"]) if parts else None
    if parts is None or scheme is None:
        raise ConfigError(
            WHERE,
            f"{redacted_url(url)!r} is none of redis://, rediss://, unix://, redis+sentinel://, "
            'redis+cluster://, "embedded", "off"',
        )
    match scheme[2]:
        case "sentinel":
            return _sentinel(parts, scheme[1])
        case "cluster":
            return _cluster(parts, scheme[1])
        case _:
            return Address("server", _options(url))


def _sentinel(parts: re.Match[str], scheme: str) -> Address:
    service, _, database = parts["path"].removeprefix("/").partition("/")
    if not service:
        raise ConfigError(
            WHERE,
            "the address names no service; it looks like "
            "redis+sentinel://HOST:26379,HOST:26379/SERVICE",
        )
    options = _options(_plain(parts, scheme, f"/{database}"))
    own = {
        name: options.pop(f"sentinel_{name}")
        for name in ("username", "password")
        if f"sentinel_{name}" in options
    }
    # One private authority covers Sentinels and data nodes.
    own |= {name: value for name, value in options.items() if name.startswith("ssl_")}
    if scheme == "rediss":
        own["ssl"] = True
    return Address("sentinel", options, _hosts(parts["hosts"], "sentinel"), service, own)


def _cluster(parts: re.Match[str], scheme: str) -> Address:
    if parts["path"].strip("/") not in {"", "0"}:
        raise ConfigError(WHERE, "a Redis Cluster has database 0 and no other")
    options = _options(_plain(parts, scheme, ""))
    return Address("cluster", options, _hosts(parts["hosts"], "cluster"))


def _plain(parts: re.Match[str], scheme: str, path: str) -> str:
    """An address of one server, for redis-py to read user, database and options from."""
    user = f"{parts['user']}@" if parts["user"] else ""
    return f"{scheme}://{user}host{path}{parts['query']}"


def _options(url: str) -> dict[str, Any]:
    try:
        options: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise ConfigError(WHERE, str(error)) from error
    # Before redis-py 6 the host's name was not compared with the certificate unless asked for.
    if url.startswith("rediss") and options.get("ssl_cert_reqs") != "none":
        options.setdefault("ssl_check_hostname", True)
    return options


def _hosts(text: str, kind: str) -> tuple[Host, ...]:
    found = list[Host]()
    for name in text.split(","):
        host = _HOST.fullmatch(name)
        if host is None or int(host["port"] or 0) > _LAST_PORT:
            raise ConfigError(WHERE, f"{name!r} is no HOST:PORT; several are parted by commas")
        found.append((host["six"] or host["name"], int(host["port"] or _PORTS[kind])))
    return tuple(found)
