"""The two sides of a real shim: a small server that speaks as the daemon does, and its trainings.

Owns the processes that it starts. Nothing here is a test. Synchronous on purpose: the thing under
test is another process, and the test waits for it with nothing else to do.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from coordinator.core.shim_protocol import Go, Hello, ShimSays, ShimTold
from tests.support.emulator import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

SHIM: Final = Path(__file__).parents[2] / "coordinator" / "shim.py"
SECONDS: Final = 60.0
T = TypeVar("T")

PYTHON: Final = [sys.executable, "-I", "-S", "-c"]

NOTES: Final = """
import os, signal, sys, time
def note(*words):
    with open(os.environ["NOTES"], "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")
def wait():
    while True:
        signal.pause()
"""
"""How every training of these tests begins: `note` writes one line that the test waits for."""

LISTENER: Final = (
    NOTES
    + """
def on_signal(number, frame):
    note("signal", number)
for number in {1, 2, 3, 10, 12, 14, 15, 20, 28}:
    signal.signal(number, on_signal)
note("ready", os.getpid())
wait()
"""
)
"""Notes each signal and goes on."""

FAMILY: Final = (
    NOTES
    + """
def escape():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("daemon", os.getpid())
            wait()
        os._exit(0)
    os.wait()
def stay():
    pid = os.fork()
    if pid == 0:
        wait()
    note("child", pid)
escape(); stay(); stay()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("ready", os.getpid())
"""
)
"""Two children and a double-forked daemon of another session; what follows is the main's part."""


class Daemon:
    """One listening socket and one connection at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = self._listen()
        self._stream: socket.socket | None = None
        self._received = b""

    def _listen(self) -> socket.socket:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        listener.settimeout(SECONDS)
        return listener

    def accept(self) -> None:
        """Take the next connection."""
        self._stream, _ = self._listener.accept()
        self._stream.settimeout(SECONDS)
        self._received = b""

    def greet(self) -> Hello:
        """Take the next connection and read its first line."""
        self.accept()
        return self.hear(Hello)

    def say(self, message: ShimTold) -> None:
        assert self._stream is not None
        self._stream.sendall(msgspec.json.encode(message) + b"\n")

    def say_raw(self, line: bytes) -> None:
        assert self._stream is not None
        self._stream.sendall(line)

    def hear_any(self) -> ShimSays | None:
        """The next message; None at the end of the connection."""
        assert self._stream is not None
        while b"\n" not in self._received:
            try:
                data = self._stream.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        message: ShimSays = msgspec.json.decode(line, type=ShimSays)
        return message

    def hear(self, kind: type[T]) -> T:
        """The next message, which must be of this kind."""
        message = self.hear_any()
        assert isinstance(message, kind), message
        return message

    def hear_all(self) -> list[ShimSays]:
        """What is said until the connection ends."""
        heard = []
        while (message := self.hear_any()) is not None:
            heard.append(message)
        return heard

    def hang_up(self) -> None:
        """Close the connection and go on listening."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def die(self) -> None:
        """Close everything, as a killed daemon does; the socket's file stays behind."""
        self.hang_up()
        self._listener.close()

    def come_back(self) -> None:
        """A new daemon on the same path."""
        self._listener = self._listen()


class Stage:
    """One directory with a daemon, and shims that are ended after the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notes_file = directory / "notes"
        self.exit_file = directory / "exit.json"
        self.daemon = Daemon(directory / "shim.sock")
        self._shims: list[subprocess.Popen[bytes]] = []  # noqa: TID251 - tests are synchronous

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "NOTES": str(self.notes_file),
            "COORDINATOR_RUN_SHIM": str(self.daemon.path),
            "COORDINATOR_RUN_AGENT": "token",
            "WANDB_RUN_ID": "r1",
            **more,
        }

    def start(
        self, command: Sequence[str], env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:  # noqa: TID251 - tests are synchronous
        """Start a shim as an agent starts its training: in a process group of its own."""
        with (self.directory / "output").open("ab") as output:
            shim = subprocess.Popen(  # noqa: TID251 - tests are synchronous
                [sys.executable, "-I", "-S", str(SHIM), *command],
                env=self.environment() if env is None else env,
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                process_group=0,
            )  # fmt: skip
        self._shims.append(shim)
        return shim

    def go(self, linger_seconds: float = 60.0, **env: str | None) -> None:
        """Tell the shim to start."""
        self.daemon.say(Go(dict(env), linger_seconds, str(self.exit_file)))

    def output(self) -> str:
        return (self.directory / "output").read_text()

    def notes(self, word: str) -> list[str]:
        """What trainings noted after `word`, in order."""
        with suppress(FileNotFoundError):
            lines = [line.split() for line in self.notes_file.read_text().splitlines()]
            return [" ".join(rest) for first, *rest in lines if first == word]
        return []

    def wait_note(self, word: str, *, count: int = 1) -> list[str]:
        def enough() -> list[str] | None:
            found = self.notes(word)
            return found if len(found) >= count else None

        found = wait_until(f"{count} notes of {word!r}", enough, SECONDS)
        assert found is not None
        return found

    def exit_record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.exit_file.read_text())
        return record

    def end(self) -> None:
        """End what is left, the trainings first."""
        self.daemon.die()
        for word in ("ready", "child", "daemon"):
            for pid in map(int, self.notes(word)):
                if self._is_ours(pid):
                    os.kill(pid, signal.SIGKILL)
        for shim in self._shims:
            if shim.poll() is None:
                shim.kill()
            shim.wait()

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            return str(self.notes_file).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False


def lives(pid: int) -> bool:
    """True for a process that is there and no zombie."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_gone(pid: int) -> None:
    wait_until(f"process {pid} is gone", lambda: not lives(pid), SECONDS)
