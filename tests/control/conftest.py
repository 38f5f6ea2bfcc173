"""A short directory for sockets, and a daemon in it."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from coordinator.telemetry import Telemetry, configure
from tests.control.daemon import Daemon, serving


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path that every user may enter: socket paths have a limit."""
    path = Path(tempfile.mkdtemp(prefix="ctl-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def telemetry(place: Path) -> Iterator[Telemetry]:
    with configure("json", place / "events.jsonl", node="node-1") as telemetry:
        yield telemetry


@pytest.fixture
async def daemon(place: Path, telemetry: Telemetry) -> AsyncIterator[Daemon]:
    async with serving(place / "control.sock", telemetry) as daemon:
        yield daemon
