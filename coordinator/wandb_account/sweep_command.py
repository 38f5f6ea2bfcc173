"""Changes the state of a sweep with the real `wandb sweep` command.

Owns that one process: it has a time limit, and its error message is passed on.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from coordinator.core.model import SweepPath
from coordinator.core.sweep import SweepVerb
from coordinator.errors import PeerError

COMMAND_SECONDS = 60.0
"""It takes two or three seconds, mostly for Python's imports."""
LONGEST_WORDS = 300


class SweepCommandError(PeerError):
    """`wandb sweep` failed, for the reason it gives"""

    def __init__(self, option: str, sweep: SweepPath, words: str) -> None:
        super().__init__(f"`wandb sweep {option} {sweep}` failed: {words}")


@dataclass(frozen=True, slots=True)
class SweepCommand:
    """How `wandb sweep` is run; `env` has the key and the address of the server."""

    executable: str
    sweep: SweepPath
    env: Mapping[str, str]
    workdir: Path

    async def run(self, verb: SweepVerb) -> None:
        """Run it. Raises SweepCommandError."""
        command = [self.executable, "sweep", verb.option, str(self.sweep)]
        try:
            with anyio.fail_after(COMMAND_SECONDS):
                done = await anyio.run_process(
                    command, env=dict(self.env), cwd=self.workdir, stdin=subprocess.DEVNULL,
                    stderr=subprocess.STDOUT, start_new_session=True, check=False,
                )  # fmt: skip
        except TimeoutError as error:
            words = f"not finished within {COMMAND_SECONDS:g} s"
            raise SweepCommandError(verb.option, self.sweep, words) from error
        except OSError as error:
            raise SweepCommandError(verb.option, self.sweep, str(error)) from error
        if done.returncode != 0:
            words = last_words(done.stdout.decode(errors="replace"))
            raise SweepCommandError(
                verb.option, self.sweep, words or f"exit code {done.returncode}"
            )


def last_words(text: str) -> str:
    """The last line that is not empty, without wandb's own prefix."""
    said = [line.strip().removeprefix("wandb: ") for line in text.splitlines() if line.strip()]
    return said[-1].removeprefix("ERROR ")[:LONGEST_WORDS] if said else ""
