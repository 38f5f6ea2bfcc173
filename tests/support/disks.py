"""A disk of its own for a test, small enough to fill it."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, mebibytes: int) -> Iterator[None]:
    """Mount a file system of that size at `path`; skips the test where that is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=700", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def free_bytes(path: Path) -> int:
    """Free for us on the disk of `path`."""
    seen = os.statvfs(path)
    return seen.f_bavail * seen.f_frsize
