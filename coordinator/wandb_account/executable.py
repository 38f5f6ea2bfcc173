"""Finds the wandb command and checks which options it has.

Owns the agent's command line. Options are probed, not assumed: `--forward-signals` came with 0.24,
and an unknown option would end every agent.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from coordinator.errors import UserError

PROBE_SECONDS = 60.0
HEAD_BYTES = 8192
"""Larger than any script that pip, uv or conda writes for an entry point."""
ENTRY = re.compile(r"^from wandb\.cli\.cli import cli$", re.MULTILINE)
SHELL_DETOUR = re.compile(r"""^'''exec' (["']?)(?P<python>.+?)\1 "\$0" "\$@"$""")
"""pip's second line if the interpreter's path is too long for `#!` or contains a space."""


class NoWandbError(UserError):
    """there is no wandb command: install wandb or set [sweep] wandb"""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"[sweep] wandb: {path or 'wandb'}: {problem}; install wandb or set its path"
        )


class NotForkableError(UserError):
    """agents cannot be forked from this wandb command, and `[pool] agent_start` is "fork" """

    def __init__(self, reason: str) -> None:
        super().__init__(f'[pool] agent_start: agents cannot be forked: {reason}; use "auto"')
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """How agents are started on this machine."""

    executable: str
    forward_signals: bool

    def argv(self, sweep: str) -> list[str]:
        """The command line of an agent for one run of `sweep`."""
        options = ["--forward-signals"] if self.forward_signals else []
        return [self.executable, "agent", "--count", "1", *options, sweep]

    @classmethod
    def from_help(cls, executable: str, text: str) -> "AgentCommand":
        """The command line, derived from the output of `wandb agent --help`."""
        return cls(executable, "--forward-signals" in text)


def find(configured: str, environ: Mapping[str, str]) -> str:
    """Path of the wandb command: as configured, else on PATH, else next to this Python.

    Raises NoWandbError.
    """
    if configured:
        found = shutil.which(configured, path=environ.get("PATH"))
    else:
        beside = Path(sys.executable).with_name("wandb")
        found = shutil.which("wandb", path=environ.get("PATH")) or shutil.which(str(beside))
    if found is None:
        raise NoWandbError(configured, "is not an executable command")
    return found


def python_of(path: str, environ: Mapping[str, str]) -> list[str]:
    """The interpreter of the wandb command at `path`, with its flags. Raises NotForkableError."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(HEAD_BYTES).decode(errors="replace")
    except OSError as error:
        raise NotForkableError(f"{path} cannot be read: {error.strerror}") from error
    words = _interpreter(text)
    if not words or not Path(words[0]).name.startswith("python"):
        raise NotForkableError(f"{path} is not a Python script")
    if not ENTRY.search(text):
        raise NotForkableError(f"{path} is not the script that comes with wandb")
    python = shutil.which(words[0], path=environ.get("PATH"))
    if python is None:
        raise NotForkableError(f"{path}: its interpreter {words[0]} does not exist")
    return [python, *words[1:]]


def _interpreter(text: str) -> list[str]:
    """The interpreter that the first line of a script names; [] for none."""
    first, second = (*text.splitlines()[:2], "", "")[:2]
    if detour := SHELL_DETOUR.match(second):
        return [detour["python"]]
    words = first[2:].split() if first.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if word != "-S"]
    return words


async def probe(path: str, environ: Mapping[str, str], workdir: Path) -> AgentCommand:
    """Ask the wandb command at `path` for its options; starts it once, about a second.

    Raises NoWandbError if it does not work.
    """
    return AgentCommand.from_help(path, await _output([path, "agent", "--help"], environ, workdir))


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
