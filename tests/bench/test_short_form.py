"""The short form: each measurement in its smallest shape works and prints its rows.

No figure is asserted: on a shared machine a time proves nothing.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.installations import supervisors_python
from tests.support.long import long_play
from tests.support.node import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BENCH: Final = REPOSITORY / "scripts" / "bench.d"


@dataclass(frozen=True, slots=True)
class Printed:
    """What one call came to."""

    code: int
    text: str
    errors: str
    document: dict[str, Any]


def bench(directory: Path, *words: str) -> Printed:
    """Run scripts/bench as it would run itself, in the environment of the tests."""
    file = directory / "results.json"
    done = subprocess.run(
        [sys.executable, str(BENCH), *words, "--json", str(file)],
        cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    document = json.loads(file.read_text()) if file.exists() else {}
    return Printed(done.returncode, done.stdout, done.stderr, document)


def environment() -> dict[str, str]:
    """Little enough that nothing of the caller's gets into a measurement."""
    kept = ("PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "COORDINATOR_TEST_VENVS")
    known = {name: os.environ[name] for name in kept if name in os.environ}
    return {**known, "PYTHONPATH": str(REPOSITORY)}


@pytest.fixture
def supervisors() -> None:
    """supervisord and circusd are installed, or the test is skipped."""
    try:
        supervisors_python()
    except OSError as error:
        pytest.skip(str(error))


def check(directory: Path, name: str, *rows: str) -> None:
    """It ends well; `rows` are in its table, and each comparison is in the summary."""
    printed = bench(directory, name, "--short")
    assert printed.code == 0, printed.errors
    (report,) = printed.document["reports"]
    assert report["name"] == name
    assert printed.document["failed"] == []
    cells = {str(cell).strip() for row in report["rows"] for cell in row.values()}
    assert set(rows) <= cells
    table, _, summary = printed.text.partition("\nsummary")
    assert all(row in table for row in rows)
    assert report["comparisons"]
    assert all(line["what"] in summary for line in report["comparisons"])
    assert all(line["ours"] is not None for line in report["comparisons"])


def test_gap(tmp_path: Path) -> None:
    check(tmp_path, "gap", "ours", "bare agent", "tree gone to started")


@long_play
def test_throughput(tmp_path: Path) -> None:
    check(tmp_path, "throughput", "ours", "bare agent")


def test_start(tmp_path: Path) -> None:
    check(tmp_path, "start", "ours", "bare agent", "1 training", "2 trainings")


def test_handoff(tmp_path: Path) -> None:
    check(tmp_path, "handoff", "leased", "training's first word", "python -c pass")


@long_play
def test_agent_killed(tmp_path: Path, supervisors: None) -> None:
    check(tmp_path, "agent-killed", "agent", "shim", "training", "supervisord", "circusd")


def test_status(tmp_path: Path, supervisors: None) -> None:
    check(tmp_path, "status", "coordinatorctl status", "supervisorctl status", "python -c pass")


def test_memory(tmp_path: Path) -> None:
    check(tmp_path, "memory", "daemon", "Redis", "shim", "agent, ready", "bare agent")


def test_leases(tmp_path: Path) -> None:
    check(tmp_path, "leases", "8")


def test_idle(tmp_path: Path) -> None:
    check(tmp_path, "idle", "the daemon itself", "everything below it", "bare agent")


def test_every_measurement_has_examples_and_is_in_the_document() -> None:
    page = (REPOSITORY / "docs" / "performance.md").read_text()
    for name in names():
        done = subprocess.run(
            [sys.executable, str(BENCH), name, "--help"],
            env=environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert f"scripts/bench {name}" in done.stdout
        assert f"### {name}\n" in page


def names() -> list[str]:
    """Every measurement, as the list of commands has it."""
    done = subprocess.run(
        [sys.executable, str(BENCH), "--help"],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [
        name for name in re.findall(r"^ {4}([a-z-]+)", done.stdout, re.MULTILINE) if name != "all"
    ]


def test_a_measurement_that_cannot_be_taken_is_named_and_makes_the_exit_code_1(
    tmp_path: Path,
) -> None:
    printed = bench(tmp_path, "start", "--rounds", "1", "--no-wandb", "--patience", "0.1")

    assert printed.code == 1
    assert printed.document["failed"] == ["start"]
    assert "not within 0.1 s" in printed.errors
