"""The listening Unix socket: its path, mode and group, and the leftovers of a dead daemon.

Owns the socket file. It must only remove a socket on which nothing listens, and the file must never
be accessible to more users than configured.
"""

import contextlib
import grp
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import ControlSocketError

MAX_PATH_BYTES = 107
"""unix(7): sun_path has 108 bytes, the last for the terminating zero."""
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket; `inode` distinguishes our file from one that replaced it."""

    sock: socket.socket
    path: Path
    inode: int
    replaced_stale: bool

    def close(self) -> None:
        """Close the socket and remove its file if it is still ours."""
        self.sock.close()
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self.inode:
                self.path.unlink()


def group_id(path: Path, group: str | None) -> int | None:
    """The ID of `group`, a name or a number. Raises ControlSocketError if it does not exist."""
    if not group:
        return None
    try:
        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise ControlSocketError(
            str(path), f"group {group!r} does not exist; create it or change [control] group"
        ) from error


def listen(path: Path, gid: int | None) -> Listener:
    """Bind and listen at `path`: mode 0600, or 0660 and group `gid`.

    Raises ControlSocketError if the path is too long, in use, or cannot be created.
    """
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ControlSocketError(
            str(path),
            f"the path is longer than {MAX_PATH_BYTES} bytes, the system's limit; "
            "choose a shorter --state-dir or set [control] socket",
        )
    stale = _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(os.fspath(path))
        # Nothing can connect before listen(), so the mode is correct from the start.
        path.chmod(0o600)
        if gid is not None:
            os.chown(path, -1, gid)
            path.chmod(0o660)
        sock.listen(_BACKLOG)
        return Listener(sock, path, path.lstat().st_ino, stale)
    except OSError as error:
        sock.close()
        raise ControlSocketError(str(path), f"cannot be created: {error.strerror}") from error


def _remove_stale(path: Path) -> bool:
    """Remove the socket of a dead daemon; True if there was one."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ControlSocketError(str(path), f"cannot be created: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ControlSocketError(
            str(path), "a file that is not a socket exists there; move or delete it"
        )
    if _is_alive(path):
        raise ControlSocketError(
            str(path),
            "another daemon is listening there; stop it (coordinatorctl stop) or use another "
            "--state-dir",
        )
    path.unlink(missing_ok=True)
    return True


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:  # its queue of connections is full, so a process owns it
            return True
        except OSError as error:
            raise ControlSocketError(str(path), f"cannot be used: {error.strerror}") from error
    return True
