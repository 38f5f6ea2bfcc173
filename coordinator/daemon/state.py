"""The state directory: its lock and its files.

Owns the lock that prevents a second daemon on the same directory.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import UserError

LONGEST_SOCKET_PATH = 107
"""sun_path of sockaddr_un without its zero byte; unix(7)."""


class StateDirError(UserError):
    """the state directory cannot be used"""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"--state-dir {path}: {problem}")


@dataclass(frozen=True, slots=True)
class StateDir:
    """Paths below one directory."""

    root: Path

    @property
    def shim_socket(self) -> Path:
        """Where shims connect."""
        return self.root / "shim.sock"

    @property
    def outputs(self) -> Path:
        """Output of agents and trainings."""
        return self.root / "logs"

    @property
    def exits(self) -> Path:
        """Wait statuses, written by shims."""
        return self.root / "exits"

    @property
    def stays(self) -> Path:
        """Live trainings, for a restarted daemon to adopt."""
        return self.root / "stays"

    @property
    def journal(self) -> Path:
        """Lease tokens."""
        return self.root / "leases"

    @property
    def history(self) -> Path:
        """Ended stays of runs."""
        return self.root / "runs.jsonl"

    @property
    def undelivered(self) -> Path:
        """Commands that were fetched but not started."""
        return self.root / "undelivered.json"

    @property
    def wanted(self) -> Path:
        """What users requested of the node."""
        return self.root / "wanted.json"


def claim_state_dir(root: Path) -> tuple[StateDir, int]:
    """Create and lock the directory; the lock lasts as long as the returned descriptor.

    Raises StateDirError.
    """
    state = StateDir(root)
    if len(os.fsencode(state.shim_socket)) > LONGEST_SOCKET_PATH:
        raise StateDirError(
            root, f"path too long for a Unix socket (limit {LONGEST_SOCKET_PATH} bytes)"
        )
    try:
        for folder in (root, state.outputs, state.exits, state.stays, state.journal):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(root / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateDirError(
            root,
            f"cannot be used: {error.strerror}; choose another directory or fix its permissions",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown pid"
        os.close(lock)
        raise StateDirError(
            root,
            f"in use by another coordinatord ({owner}); "
            "stop it with `coordinatorctl stop` or choose another directory",
        ) from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"pid {os.getpid()}\n".encode(), 0)
    return state, lock
