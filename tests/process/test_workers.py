"""Workers are known by a variable that their launcher gave them; real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from coordinator.process.workers import signal_workers, workers_of
from tests.support.emulator import wait_until

VARIABLES = frozenset({"LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"})
PROGRAM = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
name = plan["name"]
def note(signum, _frame):
    with (folder / "signals").open("a") as file:
        file.write(f"{name} {signum}\\n")
signal.signal(signal.SIGTERM, note)
for below in plan.get("below", []):
    env = {**os.environ, **below.get("env", {})}
    subprocess.Popen([sys.executable, __file__, str(folder), json.dumps(below)], env=env)
(folder / f"{name}.part").write_text(str(os.getpid()))
(folder / f"{name}.part").rename(folder / f"{name}.pid")
time.sleep(600)
"""
SERVICE = {"name": "service"}
"""Such as wandb-core or a DataLoader worker: it inherits what its parent was given."""


class Family:
    """A launcher and what it started, as `plan` says."""

    def __init__(self, folder: Path, plan: dict[str, object], **env: str) -> None:
        self.folder = folder
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self.process = subprocess.Popen(  # noqa: TID251
            [sys.executable, str(program), str(folder), json.dumps(plan)],
            env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip
        self.size = json.dumps(plan).count('"name"')
        wait_until("all have handlers", lambda: len(self.pids()) == self.size, 60)

    def pids(self) -> dict[str, int]:
        return {path.stem: int(path.read_text()) for path in self.folder.glob("*.pid")}

    def named(self, pids: list[int]) -> set[str]:
        names = {pid: name for name, pid in self.pids().items()}
        return {names[pid] for pid in pids}

    def signals(self) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted((self.folder / "signals").read_text().splitlines())
        return []

    def end(self) -> None:
        for pid in {*self.pids().values(), self.process.pid}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def rank(number: int) -> dict[str, object]:
    env = {"LOCAL_RANK": str(number)}
    return {"name": f"rank{number}", "env": env, "below": [SERVICE] if number == 0 else []}


TORCHRUN: dict[str, object] = {"name": "launcher", "below": [rank(0), rank(1), {"name": "watcher"}]}
DEEPSPEED: dict[str, object] = {"name": "runner", "below": [TORCHRUN]}
ACCELERATE: dict[str, object] = {
    "name": "launcher",
    "below": [{"name": "rank0", "env": {"ACCELERATE_MIXED_PRECISION": "no"}, "below": [SERVICE]}],
}
PLAIN: dict[str, object] = {"name": "training", "below": [SERVICE]}


@pytest.fixture
def families(tmp_path: Path) -> Iterator[list[Family]]:
    started: list[Family] = []
    yield started
    for family in started:
        family.end()


@pytest.mark.parametrize(
    ("plan", "expected"),
    [(TORCHRUN, {"rank0", "rank1"}), (DEEPSPEED, {"rank0", "rank1"}), (ACCELERATE, {"rank0"}),
     (PLAIN, set())],
    ids=["direct", "two launchers", "one process", "no launcher"],
)  # fmt: skip
def test_each_worker_is_signalled_once_and_nothing_else(
    families: list[Family], tmp_path: Path, plan: dict[str, object], expected: set[str]
) -> None:
    family = Family(tmp_path, plan)
    families.append(family)

    signalled = signal_workers(family.process.pid, VARIABLES, signal.SIGTERM)

    assert family.named(signalled) == expected
    lines = sorted(f"{name} {signal.SIGTERM:d}" for name in expected)
    wait_until("they note it", lambda: family.signals() == lines, 20)


def test_a_variable_that_the_launcher_has_itself_tells_nothing(
    families: list[Family], tmp_path: Path
) -> None:
    families.append(Family(tmp_path, ACCELERATE, ACCELERATE_MIXED_PRECISION="bf16"))
    assert workers_of(families[0].process.pid, VARIABLES) == []


def test_a_launcher_that_has_ended_has_no_workers() -> None:
    ended = subprocess.Popen(["true"])  # noqa: TID251
    ended.wait()
    assert signal_workers(ended.pid, VARIABLES, signal.SIGTERM) == []
