"""What has happened so far, read from what the processes of the demo write down.

Owns the reading of three kinds of files: the records of the training processes, the events of the
two daemons and the history of the server. Only reads; every line is kept as it was written.
"""

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(slots=True)
class Tail:
    """A growing file of JSON lines."""

    file: Path
    lines: list[Line] = field(default_factory=list)
    _offset: int = 0

    def read(self) -> list[Line]:
        """The lines that have come since the last time."""
        try:
            with self.file.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.lines += new
        return new


@dataclass(slots=True)
class Stay:
    """One training process, by its own words. Times are seconds on the system's monotonic clock."""

    run: str
    pid: int
    node: str
    first_step: int
    began: float
    last: float
    """Its last word."""
    step: int
    code: int | None = None
    """The exit code that it announced as its last word."""

    @property
    def ended(self) -> bool:
        """It has said its last word."""
        return self.code is not None


class Observed:
    """See the module."""

    def __init__(self, records: Path, server: Path, nodes: dict[str, Path]) -> None:
        self._records = Tail(records)
        self._server = Tail(server)
        self._nodes = {name: Tail(file) for name, file in nodes.items()}
        self.stays: list[Stay] = []
        """In the order of their beginnings."""
        self.states: dict[str, str] = {}
        """Run ID to the server's word for it."""
        self.feed: list[Line] = []
        """Events of both daemons in the order in which we saw them, each with its node."""

    def refresh(self) -> list[Line]:
        """Read what is new; the new events of the daemons."""
        for record in self._records.read():
            self._take(record)
        for event in self._server.read():
            if event["what"] == "run_state":
                self.states[event["run"]] = event["state"]
        new = [event for tail in self._nodes.values() for event in tail.read()]
        new.sort(key=lambda event: str(event["ts"]))
        self.feed += new
        return new

    def events(self, node: str, *names: str) -> list[Line]:
        """The events of one daemon that have one of these names; all when there are none."""
        lines = self._nodes[node].lines
        return [event for event in lines if not names or event["event"] in names]

    def server_events(self, what: str, **data: object) -> list[Line]:
        """What the server did, of one kind and with these values."""
        lines = (event for event in self._server.lines if event["what"] == what)
        return [event for event in lines if all(event.get(key) == data[key] for key in data)]

    def count(self, state: str) -> int:
        """Runs that the server shows in `state`."""
        return sum(known == state for known in self.states.values())

    @property
    def duplicates(self) -> int:
        """How often the server handed a run out that it had handed to another agent already."""
        return len(self.server_events("command", duplicate=True))

    def living(self, node: str) -> list[Stay]:
        """Training processes of a node that have not said their last word."""
        return [stay for stay in self.stays if stay.node == node and not stay.ended]

    def _take(self, record: Line) -> None:
        run, pid = record["run"], record["pid"]
        if record["what"] == "begin":
            at, step = record["at"], record["step"]
            self.stays.append(Stay(run, pid, record["node"], step, at, at, step))
            return
        stay = next(s for s in reversed(self.stays) if (s.run, s.pid) == (run, pid))
        stay.last, stay.step = record["at"], record["step"]
        stay.code = record.get("code")


def monotonic_of(ts: str) -> float:
    """The UTC time of an event on the monotonic clock, to compare it with the server's."""
    offset = datetime.now(UTC).timestamp() - time.monotonic()
    return datetime.fromisoformat(ts).timestamp() - offset
