"""Starts processes such as `wandb agent`: own session, output to a file, tied to the daemon.

Owns the child processes of the daemon and their reaping. It must never signal a pid that it has
already reaped.
"""

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import anyio
from anyio.abc import Process

from coordinator.process import tree

LAUNCHER = Path(__file__).with_name("launcher.py")


class Child(ABC):
    """One process in a session of its own."""

    eager = False
    """An agent that asks for work again at once after an empty answer, not after 5 s."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        """Process ID, also the ID of its session and process group."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""

    @abstractmethod
    async def wait(self) -> int:
        """Wait for the end; the exit code, negative for a signal."""

    def send(self, signum: int) -> None:
        """Signal only this process; does nothing if it has ended."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    async def kill_session(self) -> int:
        """SIGKILL all processes in its session, or in a session created below it, as old versions
        of wandb do for a service; returns the number of processes.
        """
        self.send(signal.SIGCONT)
        sessions = await anyio.to_thread.run_sync(tree.sessions_of, self.pid)
        return await tree.kill_all(lambda: tree.in_session(*sessions))


class Spawned(Child):
    """A process that we have started ourselves."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.pid)
        self._process = process

    @property
    def exit_code(self) -> int | None:
        """See `Child`."""
        return self._process.returncode

    async def wait(self) -> int:
        """See `Child`."""
        return await self._process.wait()


async def launch(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: int,
    stdout: int,
    stderr: int,
) -> Process:
    """Start `command` in its own session; it ends with this process. Raises OSError."""
    wrapped = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *command]
    return await anyio.open_process(
        wrapped, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=dict(env),
        start_new_session=True,
    )  # fmt: skip


async def spawn(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path
) -> Child:
    """Start `command` with its output appended to `output`.

    Raises OSError if the directory or the output file cannot be used.
    """
    log = await anyio.to_thread.run_sync(open_log, output)
    try:
        process = await launch(command, env=env, cwd=cwd, stdin=DEVNULL, stdout=log, stderr=STDOUT)
    finally:
        os.close(log)
    return Spawned(process)


def open_log(path: Path) -> int:
    """A descriptor that appends to `path`, which only we can read. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
