"""Stays of runs on disk: what a restarted daemon needs to adopt the trainings of the last one.

Owns the files `CLAIM.json` in one directory, each on disk before its training is told to start and
gone when its end is recorded. A pid alone proves nothing: the shim's start time and the boot must
match, or it is somebody else's process.
"""

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from coordinator.core import wire
from coordinator.core.model import CommandKind
from coordinator.core.wire import TrainCommand
from coordinator.leases import Lease
from coordinator.supervisor.files import put_whole

if TYPE_CHECKING:
    from coordinator.supervisor.training import Training

log = structlog.get_logger()

STAY_VERSION = 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Exit(msgspec.Struct, frozen=True):
    """The exit file, as `shim.py` writes it."""

    status: int
    """Raw wait status of the main process."""
    pid: int
    told_to_end: str = ""
    """As in `shim_protocol.Hello`."""


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """One training. Old forms are kept in tests/data and must load."""

    claim: str
    token: str
    """The lease's."""
    fence: int
    run_id: str
    kind: CommandKind
    slot: int
    command: dict[str, Any]
    """As the server gave it."""
    agent_token: str
    agent_pid: int | None
    """Also the session of the training, which outlives the agent."""
    output: str
    shim_pid: int
    shim_started: int
    """Clock ticks after the boot; proc(5), /proc/PID/stat, field 22."""
    boot_id: str
    began: str
    version: int = STAY_VERSION

    @property
    def lease(self) -> Lease:
        """The lease under which it trains."""
        return Lease(self.run_id, self.kind, self.token, self.fence, self.slot)

    @property
    def train_command(self) -> TrainCommand:
        """The command that it carries out."""
        orders = wire.parse_orders(wire.heartbeat_answer("", [self.command]))
        if orders and orders.train:
            return orders.train[0]
        return TrainCommand(self.kind, self.run_id, "", {}, self.command)

    @property
    def shim_lives(self) -> bool:
        """True while the very shim that was started then is there."""
        same_boot = self.boot_id == boot_id()
        return same_boot and start_time(self.shim_pid) == self.shim_started

    @property
    def session(self) -> int | None:
        """The session of the training; None when its number may be somebody else's by now.

        The agent led it and began before the shim, so a leader that began later is a stranger.
        """
        if self.agent_pid is None or self.boot_id != boot_id():
            return None
        leader = start_time(self.agent_pid)
        return self.agent_pid if leader is None or leader <= self.shim_started else None


class StayFiles:
    """The files of one node. All methods block: async callers use a thread."""

    def __init__(self, directory: Path, exits: Path) -> None:
        self._directory = directory
        self._exits = exits

    def put(self, stay: Stay) -> None:
        """On disk when it returns. Raises OSError."""
        put_whole(self._path(stay.claim), msgspec.json.encode(stay))

    def remove(self, claim: str) -> None:
        """The end of the training is on record."""
        self._path(claim).unlink(missing_ok=True)
        self.exit_file(claim).unlink(missing_ok=True)

    def load(self) -> list[Stay]:
        """What the last daemon left; a file that cannot be read is said and kept for a person."""
        stays = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                stays.append(msgspec.json.decode(path.read_bytes(), type=Stay))
            except (OSError, msgspec.DecodeError) as error:
                log.warning("stay_unreadable", file=str(path), error=str(error))
                path.rename(path.with_suffix(".broken"))
        return stays

    def exit_file(self, claim: str) -> Path:
        """Where the shim writes the wait status."""
        return self._exits / f"{claim}.json"

    def exit_of(self, claim: str) -> Exit | None:
        """What the shim wrote; None when it wrote nothing."""
        with suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode(self.exit_file(claim).read_bytes(), type=Exit)
        return None

    def _path(self, claim: str) -> Path:
        return self._directory / f"{claim}.json"


def utc_now() -> str:
    """The present time as it stands in records."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def boot_id() -> str:
    """Names the present boot; "" when the kernel does not say."""
    with suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()
    return ""


def start_time(pid: int) -> int | None:
    """When a living process started, in clock ticks after the boot; None for none or a zombie."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None


def stay_of(training: "Training", shim_pid: int) -> Stay:
    """The record of a training that is about to start."""
    return Stay(
        claim=training.claim,
        token=training.lease.token,
        fence=training.lease.fence,
        run_id=training.run_id,
        kind=training.command.kind,
        slot=training.slot,
        command=dict(training.command.raw),
        agent_token=training.agent.token,
        agent_pid=training.agent.pid,
        output=str(training.agent.output),
        shim_pid=shim_pid,
        shim_started=start_time(shim_pid) or 0,
        boot_id=boot_id(),
        began=training.began,
    )
