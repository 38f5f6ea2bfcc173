"""Environments with other wandbs, training frameworks or process supervisors, each made once.

They are kept in the user's cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE_VARIABLE: Final = "COORDINATOR_TEST_VENVS"
TORCH: Final = "torch==2.13.0"
FRAMEWORKS: Final = (TORCH, "lightning==2.6.6", "accelerate==1.15.0", "setuptools", "wheel")
SUPERVISORS: Final = ("supervisor==4.3.0", "circus==0.19.0")
DEEPSPEED: Final = "deepspeed==0.19.8"


def wandb_python(version: str) -> Path:
    """The Python of an environment with this wandb; raises OSError when it cannot be made."""

    def fill(python: Path) -> None:
        # Old ones import pkg_resources, which setuptools 81 has dropped.
        _install(python, f"wandb=={version}", "setuptools<81")

    return _environment(f"wandb-{version}", fill)


def frameworks_python() -> Path:
    """The Python of an environment with torch for CPUs, Lightning, accelerate, deepspeed and wandb.

    1.2 GB, one to three minutes. Raises OSError when it cannot be made, also where pip would take a
    torch with CUDA, which is several times as large.
    """

    def fill(python: Path) -> None:
        offer = _run(str(python), "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps",
                     "--only-binary=:all:", "--report=-", TORCH)  # fmt: skip
        (found,) = json.loads(offer)["install"]
        if not found["metadata"]["version"].endswith("+cpu"):
            raise OSError(f"pip finds no {TORCH} for CPUs, only {found['metadata']['version']}")
        wandb = f"wandb=={installed_version('wandb')}"
        _install(python, "--only-binary=:all:", *FRAMEWORKS, wandb)
        # No wheel exists. Nothing is compiled; its build looks at the torch that is there.
        _install(python, "--no-build-isolation", TORCH, DEEPSPEED, DS_BUILD_OPS="0")

    return _environment("frameworks", fill)


def supervisors_python() -> Path:
    """The Python of an environment with the process supervisors that we are compared with.

    Raises OSError when it cannot be made.
    """

    def fill(python: Path) -> None:
        _install(python, *SUPERVISORS, "setuptools<81")  # supervisor imports pkg_resources

    return _environment("supervisors", fill)


def _environment(name: str, fill: Callable[[Path], None]) -> Path:
    default = Path("~/.cache/wandb-coordinator/venvs").expanduser()
    cache = Path(os.environ.get(CACHE_VARIABLE, default))
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"{name}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = home / "bin" / "python"
    with (cache / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            _run(sys.executable, "-m", "venv", "--clear", str(home))
            fill(python)
            (home / "complete").touch()
    return python


def _install(python: Path, *words: str, **env: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", *words, **env)


def _run(*command: str, **env: str) -> str:
    """What it printed; an OSError with its last words when it fails."""
    try:
        return subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, **env}
        ).stdout
    except subprocess.CalledProcessError as error:
        raise OSError(f"{' '.join(command[1:])} failed: {error.stderr[-300:]}") from error
