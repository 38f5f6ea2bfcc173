"""The state table of W&B's documentation, with real SDKs and real signals.

All rows run at the same time, a few at once, since each costs seconds of start-up.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from tests.emulator.conftest import TRAINING, Wandb
from tests.support.emulator import Emulator, start_emulator, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.emulator.conftest import Process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AT_ONCE: Final = 5
PATIENCE: Final = 200.0
"""Seconds for anything that takes a few on an idle machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """How the process is marked, how it ends, and the state that follows."""

    version: str
    mark: str
    end: str
    state: str
    exit_code: int | None

    @property
    def name(self) -> str:
        """A name for the row, also of its directory."""
        return f"{self.version}-{self.mark or 'unmarked'}-{self.end}"


# The left column of the documentation, then the middle, then the right one.
NEWEST: Final = [
    Row("newest", "", "0", "finished", 0),
    Row("newest", "", "3", "failed", 3),
    Row("newest", "", "SIGKILL", "crashed", None),
    Row("newest", "", "SIGINT", "killed", 255),
    Row("newest", "", "SIGTERM", "crashed", None),
    Row("newest", "handler", "SIGKILL", "crashed", None),
    Row("newest", "handler", "SIGINT", "preempted", signal.SIGINT),
    Row("newest", "handler", "SIGTERM", "preempted", signal.SIGTERM),
    Row("newest", "early", "0", "finished", 0),
    Row("newest", "early", "3", "preempted", 3),
    Row("newest", "early", "SIGKILL", "preempted", None),
    Row("newest", "early", "SIGINT", "preempted", 255),
    Row("newest", "early", "SIGTERM", "preempted", None),
]
# wandb before its Go core: the SDK's own service process outlives a killed training by two seconds
# and then reports success for it, whatever was marked. The server cannot know better.
OLDEST: Final = [
    Row("oldest", "", "0", "finished", 0),
    Row("oldest", "", "3", "failed", 3),
    Row("oldest", "", "SIGKILL", "finished", 0),
    Row("oldest", "", "SIGINT", "killed", 255),
    Row("oldest", "", "whole tree", "crashed", None),
    Row("oldest", "handler", "SIGTERM", "preempted", signal.SIGTERM),
    Row("oldest", "early", "3", "preempted", 3),
    Row("oldest", "early", "whole tree", "preempted", None),
]


@dataclass(frozen=True, slots=True)
class Played:
    """All rows after they were played."""

    emulator: Emulator
    runs: dict[str, dict[str, Any]]
    problems: dict[str, str]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, oldest_python: Path) -> Iterator[Played]:
    """Play every row against one emulator."""
    base = tmp_path_factory.mktemp("rows")
    # The oldest SDK needs two seconds, and more on a busy machine, before silence may end a run.
    emulator = start_emulator(base, "--time-scale", "0.01", "--crash-seconds", "9")
    pythons = {"newest": Path(sys.executable), "oldest": oldest_python}
    result = Played(emulator, {}, {})

    def play(row: Row) -> None:
        wandb = Wandb(row.name, pythons[row.version], emulator, base / row.name.replace(" ", "-"))
        try:
            result.runs[row.name] = _play(row, wandb, emulator)
        except AssertionError as error:
            result.problems[row.name] = f"{error}\n{wandb.log('training')}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(play, OLDEST + NEWEST))
    yield result
    emulator.stop()


def _play(row: Row, wandb: Wandb, emulator: Emulator) -> dict[str, Any]:
    """Claim a run as an agent does, train it, end it as the row says, wait for its state."""
    sweep = emulator.create_sweep({"method": "grid", "parameters": {"lr": {"values": [0.1, 0.2]}}})
    run_id = emulator.heartbeat(emulator.create_agent(sweep))[0]["run_id"]
    settings = {
        "TRAINING_MARK": row.mark,
        "TRAINING_END": row.end if row.end.isdigit() else "wait",
        "WANDB_RUN_ID": run_id,
        "WANDB_SWEEP_ID": sweep.rpartition("/")[2],
        "WANDB_PROJECT": "tests",
    }
    training = wandb.start("training", str(TRAINING), **settings)
    try:
        wait_until("training logs", (wandb.directory / "notes").exists, PATIENCE)
        if not row.end.isdigit():
            if row.mark == "early":
                wait_until("run is marked", lambda: emulator.run(run_id)["preempting"], PATIENCE)
            _end(training, row.end)
        training.wait(timeout=PATIENCE)
        live = {"reserved", "running"}
        wait_until("run has ended", lambda: emulator.run(run_id)["state"] not in live, PATIENCE)
    finally:
        if training.poll() is None:
            training.kill()
            training.wait()
    return emulator.run(run_id) | {"queue": [e["run"] for e in emulator.sweep(sweep)["queue"]]}


def _end(training: Process, end: str) -> None:
    if end != "whole tree":
        training.send_signal(signal.Signals[end])
        return
    # The SDK's service is in a session of its own, so a signal to the group would miss it.
    for process in psutil.Process(training.pid).children(recursive=True):
        process.kill()
    training.kill()


@pytest.mark.parametrize("row", NEWEST + OLDEST, ids=lambda row: row.name)
def test_end_of_training_gives_the_documented_state(row: Row, played: Played) -> None:
    assert row.name not in played.problems, played.problems[row.name]
    run = played.runs[row.name]
    expected = {(row.state, row.exit_code)}
    if row.name == "oldest-unmarked-SIGKILL":  # its service may end before it has spoken, when busy
        expected.add(("crashed", None))
    assert (run["state"], run["exit_code"]) in expected


@pytest.mark.parametrize("row", NEWEST + OLDEST, ids=lambda row: row.name)
def test_only_preempted_runs_join_the_queue(row: Row, played: Played) -> None:
    assert bool(played.runs[row.name]["queue"]) is (row.state == "preempted")


@pytest.mark.parametrize("row", NEWEST + OLDEST, ids=lambda row: row.name)
def test_each_training_initialised_its_run_once_and_its_rows_arrived(
    row: Row, played: Played
) -> None:
    run = played.runs[row.name]
    assert run["inits"] == 1
    if row.end.isdigit() or row.end == "SIGINT":
        assert (run["rows"], run["last_step"]) == (3, 2)


def test_nothing_was_asked_that_the_emulator_does_not_know(played: Played) -> None:
    assert played.emulator.unknown() == []


@pytest.mark.parametrize("version", ["newest", "oldest"])
def test_public_api_reads_the_runs_and_their_sweep(
    version: str, played: Played, oldest_python: Path, tmp_path: Path
) -> None:
    python = {"newest": Path(sys.executable), "oldest": oldest_python}[version]
    wandb = Wandb(version, python, played.emulator, tmp_path)
    row = next(row for row in NEWEST + OLDEST if row.version == version and row.end == "3")
    sweep = played.runs[row.name]["sweep"]
    code = f"""
import json, wandb
api = wandb.Api()
sweep = api.sweep("emulator/tests/{sweep}")
(run,) = sweep.runs
same = api.run("emulator/tests/" + run.id)
found = [r.id for r in api.runs("emulator/tests", filters={{"state": "failed"}})]
rows = list(same.scan_history())
print("@" + json.dumps([sweep.state, sweep.config["method"], run.state, same.summary["loss"],
    same.config["lr"], same.lastHistoryStep, [row["_step"] for row in rows], run.id in found,
    len(same.history(pandas=False)), sweep.expected_run_count]))
"""
    status, output = wandb.python_code("-c", code)
    assert status == 0, output
    answer = next(line for line in output.splitlines() if line.startswith("@"))
    loss = "0.3333333333333333"
    assert answer == f'@["RUNNING", "grid", "failed", {loss}, 0.1, 2, [0, 1, 2], true, 3, 2]'
    assert played.emulator.unknown() == []
