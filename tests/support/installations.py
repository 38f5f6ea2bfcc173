"""Environments with other versions of wandb, each made once and kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "COORDINATOR_TEST_VENVS"


def wandb_python(version: str) -> Path:
    """The Python of an environment with this wandb; raises OSError when it cannot be made."""
    default = Path("~/.cache/wandb-coordinator/venvs").expanduser()
    cache = Path(os.environ.get(CACHE_VARIABLE, default))
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"wandb-{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            # Old ones import pkg_resources, which setuptools 81 has dropped.
            _install(home, f"wandb=={version}", "setuptools<81")
            (home / "complete").touch()
    return home / "bin" / "python"


def _install(home: Path, *requirements: str) -> None:
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            words = error.stderr.decode(errors="replace")[-300:]
            raise OSError(f"cannot install {' '.join(requirements)}: {words}") from error
