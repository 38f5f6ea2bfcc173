"""What all tests share: one backend of anyio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """asyncio only: redis.asyncio needs it."""
    return "asyncio"
