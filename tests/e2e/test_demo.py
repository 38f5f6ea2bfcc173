"""scripts/demo: runs to its end, its checker finds violations, and it leaves nothing behind.

The installation is left out: the demo runs in the environment of the tests.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.emulator import wait_until
from tests.support.long import long_play
from tests.support.node import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

DEMO: Final = REPOSITORY / "scripts" / "demo"
PLAY_SECONDS: Final = 900.0


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A TMPDIR short enough for unix sockets, in which the demo must leave nothing."""
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as directory:
        yield Path(directory)


def start(scratch: Path, *flags: str) -> subprocess.Popen[str]:
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(REPOSITORY),
        "TMPDIR": str(scratch),
        # What a user's shell may hold must reach nothing.
        "COORDINATOR_POOL_SLOTS": "7",
        "WANDB_MODE": "offline",
        "WANDB_BASE_URL": "http://127.0.0.1:1",
    }
    return subprocess.Popen(
        [str(DEMO), "--no-install", *flags],
        env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def play(scratch: Path, result: Path, *flags: str) -> tuple[int, str, dict[str, Any]]:
    """Run the demo to its end: exit code, output, JSON."""
    with start(scratch, "--json", str(result), *flags) as demo:
        try:
            output, _ = demo.communicate(timeout=PLAY_SECONDS)
        finally:
            demo.kill()
    data: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
    return demo.returncode, output, data


def living(scratch: Path) -> dict[int, str]:
    """Processes whose environment or command line names the scratch directory.

    That is all that a demo has started; a program that sets its title may overwrite either.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            pid, environ = int(entry.name), (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_text().replace("\0", " ")
            named = os.fsencode(scratch) in environ or str(scratch) in command
            if named and " Z " not in (entry / "stat").read_text():
                found[pid] = command
    return found


def failed(data: dict[str, Any]) -> list[str]:
    return [check["name"] for check in data["checks"] if not check["passed"]]


def test_it_plays_to_a_good_end_and_leaves_nothing(scratch: Path, tmp_path: Path) -> None:
    code, output, data = play(scratch, tmp_path / "demo.json")

    assert code == 0, output
    assert data["passed"]
    facts = data["facts"]
    assert facts["runs"] == 12
    assert facts["finished"] == 12
    assert facts["unfinished"] == {}
    assert (facts["killed_outcome"], facts["killed_state"]) == ("crashed", "finished")
    assert facts["preempted"] == 2
    assert facts["resumed_elsewhere"] >= 1
    assert facts["duplicates"] >= 1
    assert facts["overlaps"] == facts["orphans"] == facts["broken_histories"] == []
    assert facts["trained_again"] == facts["steps_lost"] == 0
    assert all(0 <= claim <= gap for claim, gap in zip(facts["claims"], facts["gaps"], strict=True))
    paths = ("COORDINATOR_SOCKET=", "leases ls")  # as long as the paths of this machine are
    shown = [line for line in output.splitlines() if not any(path in line for path in paths)]
    assert max(map(len, shown)) <= 80
    assert "✗" not in output
    assert output.count("✓") == len(data["checks"]) >= 10
    assert not living(scratch)
    assert not list(scratch.iterdir())


@long_play
def test_the_checker_detects_overlaps_of_the_demo_without_leases(
    scratch: Path, tmp_path: Path
) -> None:
    code, output, data = play(scratch, tmp_path / "demo.json", "--leases", "off", "--runs", "8")

    assert code == 1, output
    assert data["facts"]["overlaps"] != []
    assert data["facts"]["trained_again"] > 0
    assert {
        "no run was trained by two processes at once",
        "no run was trained again needlessly",
    } <= set(failed(data))
    assert not data["passed"]
    assert "✗ no run was trained by two processes at once" in output
    assert not living(scratch)
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_and_removes_everything(
    scratch: Path, signum: signal.Signals
) -> None:
    with start(scratch, "--plain") as demo:
        try:
            wait_until(
                "a training process has begun",
                lambda: any("train.py" in command for command in living(scratch).values()),
                300,
            )
            assert len(living(scratch)) > 5
            demo.send_signal(signum)
            output, _ = demo.communicate(timeout=60)
        finally:
            demo.kill()

    assert demo.returncode == 130, output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert not living(scratch)
    assert not list(scratch.iterdir())


def test_help_and_wrong_options_need_no_installation(scratch: Path) -> None:
    with start(scratch, "--help") as demo:
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0
    assert "examples:" in output
    for flag in ("--runs", "--keep", "--plain", "--json", "--leases", "--python", "--no-install"):
        assert flag in output

    with start(scratch, "--runs", "3") as demo:
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 2
    assert "--runs must be 8 to 60" in output
