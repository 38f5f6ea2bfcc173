"""The embedded server's directory: its files, their permissions, its lock and its configuration.

Owns the files on disk. It must never start or stop a process. All functions block briefly, so they
are called in a thread.
"""

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.errors import UserError

LONGEST_PATH: Final = 107
"""Bytes of a Unix socket's path: sun_path is 108 with its final zero, unix(7)."""
_TAIL_LINES: Final = 5


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything is in one directory that only its owner can access."""

    directory: Path

    @property
    def socket(self) -> Path:
        """Where the server listens; there is no TCP port."""
        return self.directory / "redis.sock"

    @property
    def log(self) -> Path:
        """Output of the server since its last start."""
        return self.directory / "redis.log"

    @property
    def lock(self) -> Path:
        """Locked while a server may be running; the server inherits the lock."""
        return self.directory / "redis.lock"

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"unix://{self.socket}"

    def arguments(self) -> list[str]:
        """The server's command line after the program.

        Append-only with a sync every second: a killed server loses nothing, because each answer
        comes after the write to the file. A power cut can lose one second, but also ends every
        training of the node. A sync for each write would make leases wait for slow network disks.
        """
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "600",
            "dir": str(self.directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "databases": "1",
            "loglevel": "notice",
            "logfile": "",
        }
        return [part for key, value in options.items() for part in (f"--{key}", value)]


def prepare(state_dir: Path) -> Layout:
    """Create the directory. Raises UserError if the socket's path would be too long."""
    layout = Layout(state_dir.absolute() / "redis")
    length = len(os.fsencode(layout.socket))
    if length > LONGEST_PATH:
        raise UserError(
            f"--state-dir: {layout.socket} has {length} bytes; the limit for the path of a Unix "
            f"socket is {LONGEST_PATH}; choose a shorter directory"
        )
    layout.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    layout.directory.chmod(0o700)
    return layout


def try_lock(layout: Layout) -> int | None:
    """The locked file, or None while another server or daemon has it.

    The lock belongs to the open file, which the server inherits, so it lasts until both are gone.
    """
    handle = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def open_log(layout: Layout) -> int:
    """A new log; the previous one is kept as `redis.log.1`."""
    if layout.log.exists():
        layout.log.replace(layout.log.with_suffix(".log.1"))
    return os.open(layout.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def log_tail(layout: Layout) -> str:
    """The last lines of the server's output, for an error message."""
    try:
        lines = layout.log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return " | ".join(line.strip() for line in lines[-_TAIL_LINES:] if line.strip())


def clear_socket(layout: Layout) -> None:
    """Remove the socket of a dead server; only while holding the lock."""
    layout.socket.unlink(missing_ok=True)
