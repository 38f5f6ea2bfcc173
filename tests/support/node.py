"""One node for tests: a real coordinatord as a process, coordinatorctl, and what they leave behind.

Every process that a node starts, however far below, carries a mark in its environment; so "nothing
is left" can be asked of the kernel.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.emulator import Emulator, wait_until

MARK: Final = "COORDINATOR_RUN_TEST_MARK"
TRAIN: Final = Path(__file__).with_name("train.py")
REPOSITORY: Final = Path(__file__).parents[2]


@dataclass
class Node:
    """A node that may be started, stopped and started again."""

    name: str
    emulator: Emulator
    directory: Path
    sweep: str
    flags: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: subprocess.Popen[bytes] | None = None

    @property
    def state_dir(self) -> Path:
        return self.directory / self.name

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def records_file(self) -> Path:
        return self.directory / "records.jsonl"

    def environment(self) -> dict[str, str]:
        return {
            **self.emulator.environment(self.directory / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "RECORDS": str(self.records_file),
            "NODE": self.name,
            "COORDINATOR_NODE": self.name,
            MARK: self.mark,
            **self.env,
        }

    def start(self, *flags: str) -> Node:
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coordinator.daemon", "--sweep", self.sweep,
                 "--state-dir", str(self.state_dir), *self.flags, *flags],
                env=self.environment(), cwd=self.directory, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        return self

    def send(self, signum: int) -> None:
        assert self.process is not None
        self.process.send_signal(signum)

    def release(self) -> None:
        """Let every training of this directory come to its end."""
        (self.directory / "release").touch()

    def wait(self, seconds: float = 200) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{self.name} still lives after {seconds} s") from error

    def ctl(self, *words: str, check: int | None = 0) -> Any:
        """Run coordinatorctl with --json; its parsed output (None when there is none)."""
        done = self.ctl_raw("--json", *words)
        if check is not None:
            assert done.returncode == check, (words, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def ctl_raw(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "coordinator.cli", "--socket",
             str(self.state_dir / "control.sock"), *words],
            env=self.environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """The status object; {} while the daemon cannot be asked."""
        done = self.ctl_raw("--json", "status")
        return json.loads(done.stdout) if done.returncode in {0, 5} else {}

    def running(self) -> list[dict[str, Any]]:
        return [slot for slot in self.status().get("slots", []) if slot["state"] == "running"]

    def wait_running(self, count: int, seconds: float = 180) -> list[dict[str, Any]]:
        def enough() -> list[dict[str, Any]] | None:
            assert self.process is not None
            assert self.process.poll() is None, self.tail()
            slots = self.running()
            return slots if len(slots) >= count else None

        found = wait_until(f"{count} running on {self.name}", enough, seconds)
        assert found is not None
        return found

    def runs(self) -> list[dict[str, Any]]:
        """Ended and living stays, newest first; [] while the daemon cannot be asked."""
        done = self.ctl_raw("--json", "runs", "--limit", "0")
        return json.loads(done.stdout) if done.returncode == 0 else []

    def history(self) -> list[dict[str, Any]]:
        """Ended stays from disk, oldest first: for a daemon that is gone."""
        with suppress(FileNotFoundError):
            return [
                json.loads(line)
                for line in (self.state_dir / "runs.jsonl").read_text().splitlines()
            ]
        return []

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        with suppress(FileNotFoundError):
            lines = (self.state_dir / "events.jsonl").read_text().splitlines()
            events = [json.loads(line) for line in lines]
            return [event for event in events if name in {None, event["event"]}]
        return []

    def records(self, what: str | None = None) -> list[dict[str, Any]]:
        """What the trainings of all nodes in this directory wrote."""
        with suppress(FileNotFoundError):
            lines = self.records_file.read_text().splitlines()
            records = [json.loads(line) for line in lines]
            return [record for record in records if what in {None, record["what"]}]
        return []

    def said(self) -> str:
        """All that the trainings of this node have printed, in order."""
        paths = sorted(self.state_dir.glob("logs/agent-*.log"), key=lambda p: int(p.stem[6:]))
        return "".join(path.read_text() for path in paths)

    def processes(self) -> dict[int, str]:
        """Living processes that this node started, with their command lines."""
        return marked(self.mark, self.state_dir)

    def wait_nothing_left(self, seconds: float = 30) -> None:
        wait_until(f"no process of {self.name} left", lambda: not self.processes(), seconds)

    def tail(self) -> str:
        return self.log.read_text()[-4000:]

    def end(self) -> None:
        """End whatever is left, for the fixture."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for _ in range(100):
            left = self.processes()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                return


def marked(mark: str, state_dir: Path | None = None) -> dict[int, str]:
    """Living processes (zombies do not count) whose environment carries `mark`.

    Also those whose command line names the state directory: a server's title hides its environment.
    """
    needle = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            carries = needle in (entry / "environ").read_bytes().split(b"\0")
            if not carries and (state_dir is None or f"{state_dir}/" not in command):
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            found[int(entry.name)] = command
    return found


def overlaps(records: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Pairs of training processes that held one run at the same time, with the seconds shared.

    A process without an end record is taken to have ended at its last word.
    """
    spans: dict[tuple[str, int], list[float]] = {}
    for record in records:
        spans.setdefault((record["run"], record["pid"]), []).append(record["at"])
    items = [(run, min(times), max(times)) for (run, _), times in spans.items()]
    found = []
    for index, (run, begin, end) in enumerate(items):
        for other, begin2, end2 in items[index + 1 :]:
            shared = min(end, end2) - max(begin, begin2)
            if run == other and shared > 0:
                found.append((run, shared))
    return found


def sweep_config(count: int, command: list[str] | None = None, **parameters: Any) -> dict[str, Any]:
    """A grid sweep of `count` runs of the test training."""
    config: dict[str, Any] = {
        "program": str(TRAIN),
        "method": "grid",
        "parameters": {
            "n": {"values": list(range(count))},
            **{key.replace("_", "-"): {"value": value} for key, value in parameters.items()},
        },
    }
    if command is not None:
        config["command"] = command
    return config
