"""A training script for the tests: logs a few steps, then ends (or waits) as it is told.

Not a test module. It is run by every version of wandb, so it uses only what all of them have. What
to do comes from `TRAINING_*` variables, since a sweep's arguments fill the command line:

* `TRAINING_MARK`: `early` marks the run as preempting at once, `handler` on SIGTERM or SIGINT;
* `TRAINING_END`: an exit code, `wait` (for a signal), `until:FILE` (for a file to exist), or
  `preempt:FILE` (marked exit 1 for whoever creates the file, exit 0 for all later ones);
* `TRAINING_NOTES`: a file that gets one JSON line for each start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import wandb

if TYPE_CHECKING:
    from types import FrameType

STEPS = 3


def main() -> None:
    """Train."""
    run = begin()
    first = run.starting_step
    mark(os.environ.get("TRAINING_MARK", ""))
    for step in range(STEPS):
        wandb.log({"loss": 1.0 / (first + step + 1)})
    note = {"run": run.id, "first_step": first, "args": sys.argv[1:], "config": dict(run.config)}
    with Path(os.environ["TRAINING_NOTES"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(note) + "\n")
    how, _, detail = os.environ.get("TRAINING_END", "0").partition(":")
    sys.exit(end(how, Path(detail)))


def begin() -> wandb.Run:
    """`wandb.init()`, from the beginning if the SDK's own service was not ready.

    The service of wandb 0.16 names its port before it listens there (`SocketServer.start`), so on a
    busy machine its own SDK can be refused. The server has heard nothing of the run by then.
    """
    try:
        return wandb.init()
    except Exception as error:
        if type(error).__name__ != "ManagerConnectionRefusedError":
            raise
        del os.environ["WANDB_SERVICE"]
        os.execv(sys.executable, [sys.executable, *sys.argv])


def mark(when: str) -> None:
    """Mark the run as one that may be given back, now or in a handler."""
    if when == "early":
        mark_preempting()
    if when == "handler":
        signal.signal(signal.SIGTERM, give_back)
        signal.signal(signal.SIGINT, give_back)


def give_back(signum: int, _frame: FrameType | None) -> None:
    """What the documentation tells users to do on a preemption signal."""
    mark_preempting()
    sys.exit(signum)


def mark_preempting() -> None:
    """Tell the server that whoever ends this run from now on does so by preemption."""
    if wandb.run is not None:
        wandb.run.mark_preempting()


def end(how: str, file: Path) -> int:
    """Wait if told to; return the exit code."""
    if how == "wait":
        time.sleep(600)
    if how == "until":
        while not file.exists():
            time.sleep(0.05)
    if how == "preempt" and not file.exists():
        file.touch()
        mark_preempting()
        return 1
    return int(how) if how.isdigit() else 0


if __name__ == "__main__":
    main()
