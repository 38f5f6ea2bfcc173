"""One stage for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shim.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A daemon that listens, and no shim yet."""
    stage = Stage(tmp_path)
    yield stage
    stage.end()
