"""Fixtures for tests of the emulator: emulators, and real wandb installations of two versions."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.emulator import Emulator, start_emulator
from tests.support.installations import wandb_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Process = subprocess.Popen[bytes]

OLDEST: Final = "0.16.6"
TRAINING: Final = Path(__file__).with_name("training.py")
_COMMAND_SECONDS: Final = 200.0


@dataclass(frozen=True, slots=True)
class Wandb:
    """One installation of wandb, driven as a user would from a shell in `directory`."""

    label: str
    python: Path
    emulator: Emulator
    directory: Path

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of every process of this user."""
        env = self.emulator.environment(self.directory / "home", **more)
        env["PATH"] = f"{self.python.parent}{os.pathsep}{env.get('PATH', '')}"
        env.setdefault("TRAINING_NOTES", str(self.directory / "notes"))
        return env

    def start(self, name: str, *command: str, **more: str) -> Process:
        """Start a program in a process group of its own; its output goes to a file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(self.python), *command],
                cwd=self.directory,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def command(self, *arguments: str, **more: str) -> tuple[int, str]:
        """Run `wandb ARGUMENTS` to its end; return the exit code and all that it printed."""
        return self.python_code("-m", "wandb", *arguments, **more)

    def python_code(self, *arguments: str, **more: str) -> tuple[int, str]:
        """Run this installation's Python to its end."""
        self.directory.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.directory,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def agent(self, path: str, *flags: str, **more: str) -> Process:
        """Start `wandb agent`."""
        return self.start("agent", "-m", "wandb", "agent", *flags, path, **more)

    def log(self, name: str) -> str:
        """What a started program has printed so far."""
        return (self.directory / f"{name}.log").read_text(errors="replace")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Emulator]]:
    """Start emulators with flags of the test's own; all are ended after the test."""
    started: list[Emulator] = []

    def begin(*flags: str) -> Emulator:
        emulator = start_emulator(tmp_path / f"emulator{len(started)}", *flags)
        started.append(emulator)
        return emulator

    yield begin
    for emulator in started:
        emulator.stop()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator with the real server's times, for all tests that need no flags."""
    emulator = start_emulator(tmp_path_factory.mktemp("shared"))
    yield emulator
    emulator.stop()


@pytest.fixture
def emulator(shared: Emulator) -> Emulator:
    """The shared emulator, well-behaved again, with a history that begins here."""
    calm: dict[str, object] = {"racy_window": 0.0, "racy_new": False}
    shared.faults(clear=True, wandb_arg=True, early_finish=False, **calm)
    return replace(shared, since=shared.history()[-1]["n"])


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator for which silence and unused claims end within a moment."""
    times = ("--crash-seconds", "0.3", "--reserve-seconds", "0.3")
    emulator = start_emulator(tmp_path_factory.mktemp("hasty"), *times)
    yield emulator
    emulator.stop()


@pytest.fixture(scope="session")
def oldest_python() -> Path:
    """The Python of a virtual environment with the oldest supported wandb, made once and kept."""
    try:
        return wandb_python(OLDEST)
    except OSError as error:
        pytest.skip(str(error))
