"""Fixtures of the lease tests: one Redis for a module, one sweep of its own for each test."""

from collections.abc import AsyncIterator
from itertools import count

import pytest

from coordinator.core.model import SweepPath
from tests.support.redis import RedisServer, redis_server

_numbers = count()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def redis(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RedisServer]:
    """Shared: a test that kills, freezes or wipes takes a server of its own."""
    del anyio_backend
    async with redis_server(tmp_path_factory.mktemp("r")) as server:
        yield server


@pytest.fixture
def sweep() -> SweepPath:
    return SweepPath("ent", "proj", f"s{next(_numbers)}")
