"""The embedded Redis: a private server that lives and dies with the daemon (docs/leases.md)."""

from coordinator.redis_server.binary import find_server
from coordinator.redis_server.embedded import embedded_redis

__all__ = ["embedded_redis", "find_server"]
