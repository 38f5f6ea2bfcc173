"""What coordinatorctl must not load: each command starts with what it needs and nothing else."""

import sys

import anyio
import pytest

from tests.control.daemon import Daemon, environment

pytestmark = pytest.mark.anyio

_LIST = """
import atexit, sys
before = set(sys.modules)
atexit.register(lambda: sys.stderr.write(" ".join(sorted(set(sys.modules) - before))))
from coordinator.cli import main
main()
"""
SLOW = frozenset({
    "aiohttp", "anyio", "asyncio", "concurrent.futures", "email", "http", "http.client", "logging",
    "redis", "rich", "ssl", "structlog", "subprocess", "urllib.parse", "urllib.request", "wandb",
    "yaml",
})  # fmt: skip
"""Nothing that coordinatorctl does needs one of these."""
PARSING = frozenset({"click", "inspect", "dataclasses", "typing", "pathlib", "shutil", "textwrap"})
"""click, and what it brings."""
MESSAGES = frozenset({"msgspec", "coordinator.core.protocol", "coordinator.core.model"})


async def _modules(*arguments: str, daemon: Daemon | None = None) -> set[str]:
    """What a run loads. -S: what some .pth file loads is not our doing."""
    env = environment({"COORDINATOR_SOCKET": str(daemon.socket)} if daemon else None)
    env["PYTHONPATH"] += "".join(f":{place}" for place in sys.path if "site-packages" in place)
    line = [sys.executable, "-S", "-c", _LIST, *arguments]
    with anyio.fail_after(30):
        done = await anyio.run_process(line, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.decode().split())


@pytest.mark.parametrize("line", ["--help", "-h", "--version"])
async def test_help_loads_next_to_nothing(line: str) -> None:
    loaded = await _modules(line)
    assert "coordinator.cli.start" in loaded
    assert not loaded & (SLOW | PARSING | MESSAGES | {"json", "re", "socket", "datetime"})


@pytest.mark.parametrize("line", [["status"], ["status", "--json"], ["--json", "status"]])
async def test_status_loads_no_parser_and_no_message_library(
    daemon: Daemon, line: list[str]
) -> None:
    loaded = await _modules(*line, daemon=daemon)
    assert "coordinator.cli.client" in loaded
    assert not loaded & (SLOW | PARSING | MESSAGES | {"tomllib", "coordinator.config"})


@pytest.mark.parametrize(
    "line", [["events", "--json"], ["logs", "--json"], ["status", "--json", "--socket"]]
)
async def test_json_that_is_passed_on_needs_click_alone(daemon: Daemon, line: list[str]) -> None:
    path = [str(daemon.socket)] if line[-1] == "--socket" else []
    loaded = await _modules(*line, *path, daemon=daemon)
    assert "click" in loaded
    assert not loaded & (SLOW | MESSAGES | {"tomllib", "coordinator.config"})


@pytest.mark.parametrize("line", ["runs", "leases ls", "events", "logs", "drain"])
async def test_no_command_loads_a_slow_library(daemon: Daemon, line: str) -> None:
    loaded = await _modules(*line.split(), daemon=daemon)
    assert not loaded & SLOW
    assert not loaded & {"coordinator.config", "coordinator.telemetry.setup"}
