"""What a table of results must say about the machine and the code that it comes from.

Owns the reading of these facts; it must never change anything.
"""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.support.node import REPOSITORY

_GIB = 1 << 20


def facts() -> dict[str, str]:
    """Machine, date, commit and versions, in the order in which they are printed."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": _commit(),
        "machine": f"{os.cpu_count()} x {_processor()}, {_memory()}",
        "kernel": platform.release(),
        "versions": f"Python {platform.python_version()}, wandb {version('wandb')}",
        "load": f"{os.getloadavg()[0]:.2f} when it began",
    }


def _commit() -> str:
    """The short hash, marked when the tree has changes; a copy without git has none."""
    head = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return f"{head}{' with changes' if changed else ''}" if head else "unknown"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory() -> str:
    total = Path("/proc/meminfo").read_text().split(maxsplit=2)[1]
    return f"{int(total) / _GIB:.0f} GiB"
