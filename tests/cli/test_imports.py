"""What coordinatorctl must not load."""

import sys

import anyio
import pytest

from tests.control.daemon import Daemon, environment

pytestmark = pytest.mark.anyio

_LIST = """
import atexit, sys
atexit.register(lambda: sys.stderr.write(" ".join(sorted(sys.modules))))
from coordinator.cli import main
main()
"""


async def _modules(*arguments: str) -> set[str]:
    with anyio.fail_after(30):
        done = await anyio.run_process(
            [sys.executable, "-c", _LIST, *arguments], check=False, env=environment()
        )
    assert done.returncode == 0
    return set(done.stderr.decode().split())


async def test_help_loads_nothing_but_click() -> None:
    loaded = await _modules("--help")
    assert "click" in loaded
    assert not loaded & {"msgspec", "http.client", "rich", "structlog", "anyio", "json"}


async def test_a_command_with_json_loads_no_slow_library(daemon: Daemon) -> None:
    for command in ("status", "events"):
        loaded = await _modules(command, "--json", "--socket", str(daemon.socket))
        assert "coordinator.cli.client" in loaded
        slow = {"rich", "structlog", "anyio", "asyncio", "aiohttp", "redis", "wandb", "yaml"}
        assert not loaded & slow
