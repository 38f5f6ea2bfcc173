"""Writes small files of the state directory whole: a reader sees the old content or the new one.

Owns the scratch file beside each, with the suffix `.part`.
"""

import os
from pathlib import Path


def put_whole(path: Path, content: bytes, durable: bool = True) -> None:
    """Write it; safe from a power cut if `durable`. Blocks; raises OSError."""
    scratch = path.with_suffix(".part")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    scratch.replace(path)
    if durable:
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Or the new name may be lost with the power; fsync(2) says so."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
