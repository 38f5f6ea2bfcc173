"""Who is at the other end of the control socket, and whether that user may send commands.

Owns the check. It uses only what the kernel reports (SO_PEERCRED, SO_PEERGROUPS: the state at the
peer's connect), not what the peer says.
"""

import os
import socket
import struct
from dataclasses import dataclass
from typing import Protocol

_UCRED = struct.Struct("=iII")
"""struct ucred of unix(7): pid, uid, gid."""
_SO_PEERGROUPS = 59
"""asm-generic/socket.h, Linux 4.13; Python 3.11 has no name for it."""
_MAX_OPTION_BYTES = 1024
"""The maximum of socket.getsockopt: 256 groups."""


class HasOptions(Protocol):
    """A socket, or asyncio's substitute for one."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """As socket.socket.getsockopt."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A connected process. `groups` has its supplementary groups and its own."""

    pid: int
    uid: int
    groups: frozenset[int]


def peer_of(sock: HasOptions) -> Peer:
    """Ask the kernel who connected. Raises OSError if the socket has no peer."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    try:
        more = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_OPTION_BYTES)
    except OSError:  # an old kernel, or more than 256 groups: its own group is still known
        more = b""
    groups = {int(value) for (value,) in struct.iter_unpack("=I", more)}
    return Peer(pid, uid, frozenset(groups | {gid}))


def may_command(peer: Peer, gid: int | None) -> bool:
    """True for root, for the daemon's own user and for members of group `gid`."""
    return peer.uid in {0, os.geteuid()} or (gid is not None and gid in peer.groups)
