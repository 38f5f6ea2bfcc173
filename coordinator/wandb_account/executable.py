"""Finds the wandb command and asks it which options it has.

Owns the agent's command line. Options are probed, not assumed: `--forward-signals` came with 0.24,
and a refused option would end every agent.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from coordinator.errors import UserError

PROBE_SECONDS = 60.0


class NoWandbError(UserError):
    """there is no wandb command: install wandb or set [sweep] wandb"""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"[sweep] wandb: {path or 'wandb'}: {problem}; install wandb or set its path"
        )


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """How an agent of this machine is started."""

    executable: str
    forward_signals: bool

    def argv(self, sweep: str) -> list[str]:
        """The command line of an agent for one run of `sweep`."""
        options = ["--forward-signals"] if self.forward_signals else []
        return [self.executable, "agent", "--count", "1", *options, sweep]


def find(configured: str, environ: Mapping[str, str]) -> str:
    """Path of the wandb command: as configured, else on PATH, else beside this Python.

    Raises NoWandbError.
    """
    if configured:
        found = shutil.which(configured, path=environ.get("PATH"))
    else:
        beside = Path(sys.executable).with_name("wandb")
        found = shutil.which("wandb", path=environ.get("PATH")) or shutil.which(str(beside))
    if found is None:
        raise NoWandbError(configured, "is no command that can be executed")
    return found


async def probe(configured: str, environ: Mapping[str, str], workdir: Path) -> AgentCommand:
    """Ask the wandb command for its options; starts it once, about a second.

    Raises NoWandbError when there is none or it does not work.
    """
    path = await anyio.to_thread.run_sync(find, configured, environ)
    text = await _output([path, "agent", "--help"], environ, workdir)
    return AgentCommand(path, "--forward-signals" in text)


async def _output(command: list[str], environ: Mapping[str, str], workdir: Path) -> str:
    try:
        with anyio.fail_after(PROBE_SECONDS):
            done = await anyio.run_process(
                command, env=dict(environ), cwd=workdir, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True, check=False,
            )  # fmt: skip
    except (OSError, TimeoutError) as error:
        raise NoWandbError(command[0], str(error) or "did not answer") from error
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        last = text.strip().splitlines()[-1:] or ["no output"]
        raise NoWandbError(command[0], f"`{' '.join(command[1:])}` failed: {last[0]}")
    return text
