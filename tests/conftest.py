"""What all tests share: one backend of anyio, and SIGINT as a terminal would have it."""

import signal

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background jobs start with SIGINT ignored, and every child would inherit that:
    # trainings and agents under test must meet the signal as they do elsewhere.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    """asyncio only: redis.asyncio needs it."""
    return "asyncio"
