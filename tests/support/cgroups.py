"""Things of the kernel that only root can make: memory limits and a file system that hangs."""

from __future__ import annotations

import os
import subprocess
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def unified_mount() -> Path:
    """Where control groups of version 2 are."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            return Path(line.split()[4])
    pytest.skip("no control groups of version 2 are mounted")


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group (of whichever version has the memory controller) with this limit."""
    v1 = Path("/sys/fs/cgroup/memory")
    root, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (unified_mount(), "memory.max")
    group = root / f"wandb-coordinator-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / limit).write_text(str(limit_bytes))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no memory limit can be set: {error}")
    yield group
    group.rmdir()


@contextmanager
def frozen_file_system(directory: Path) -> Iterator[Callable[[], None]]:
    """A file system at `directory`/mount on which writers hang; call its value to thaw."""
    image, mount = directory / "image", directory / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        os.truncate(file.fileno(), 16 << 20)
    thawed = False

    def thaw() -> None:
        nonlocal thawed
        if not thawed:
            thawed = True
            _run("fsfreeze", "--unfreeze", str(mount))

    try:
        _run("mkfs.ext4", "-q", str(image))
        _run("mount", "-o", "loop", str(image), str(mount))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted: {error}")
    try:
        _run("fsfreeze", "--freeze", str(mount))
        yield thaw
    finally:
        thaw()
        _run("umount", str(mount))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
