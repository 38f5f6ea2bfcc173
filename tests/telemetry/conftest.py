"""A telemetry pipeline with an events file in the test's directory."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.telemetry import Telemetry, configure


@dataclass(frozen=True)
class Pipeline:
    telemetry: Telemetry
    file: Path
    console: io.StringIO

    def events(self) -> list[dict[str, Any]]:
        """Everything that was logged so far, as the file has it."""
        return self.telemetry.tail(100_000)

    def console_events(self) -> list[dict[str, Any]]:
        for _ in range(2):  # everything before has been written then, and what that made it say
            self.telemetry.tail(0)
        return [msgspec.json.decode(line) for line in self.console.getvalue().splitlines()]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    console = io.StringIO()
    file = tmp_path / "state" / "events.jsonl"
    with configure("auto", file, 10_000, 3, "node-1", stream=console) as telemetry:
        yield Pipeline(telemetry, file, console)
