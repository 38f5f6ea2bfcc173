"""What all tests share: one backend of anyio, and signals as a terminal would have them."""

import signal

import pytest
from hypothesis import settings

# Machines are shared and noisy: how long an example takes proves nothing.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# A shell's background jobs start with these ignored, and every child would inherit that: agents and
# trainings under test must meet them as they do elsewhere.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture
def anyio_backend() -> str:
    """asyncio only: redis.asyncio needs it."""
    return "asyncio"
