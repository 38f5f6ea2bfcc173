"""The training of every measurement, the same under all ways of starting it.

Owns the records by which all ways are measured: the first thing that it does is to look at the
clock, and the last is to look again, when wandb has cleared up behind itself. What it does in
between is set by the sweep's parameters; where it records, by RECORDS in the environment.
"""

import time

BEGAN = time.clock_gettime(time.CLOCK_MONOTONIC)
BEGAN_WALL = time.clock_gettime(time.CLOCK_REALTIME)

import argparse  # noqa: E402 - the clock comes first
import atexit  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

GOLDEN = 0.6180339887
PREEMPTED = 143


def parse() -> argparse.Namespace:
    """The sweep's parameters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=0, help="number of the run")
    parser.add_argument("--low", type=float, default=3.0, help="seconds of the shortest run")
    parser.add_argument("--high", type=float, default=3.0, help="seconds of the longest run")
    parser.add_argument("--wandb", type=int, default=1, help="0: do not even import it")
    parser.add_argument("--close", type=float, default=0.0, help="seconds to live after a save")
    return parser.parse_known_args()[0]


def record(what: str, at: float | None = None, wall: float | None = None) -> None:
    """Append one line; one write, so that the lines of several trainings do not mix."""
    line = {
        "what": what,
        "at": time.clock_gettime(time.CLOCK_MONOTONIC) if at is None else at,
        "wall": time.clock_gettime(time.CLOCK_REALTIME) if wall is None else wall,
        "pid": os.getpid(),
        "run": os.environ.get("WANDB_RUN_ID"),
        "node": os.environ.get("NODE"),
        "slot": int(os.environ.get("COORDINATOR_RUN_SLOT") or os.environ.get("BENCH_SLOT") or 0),
    }
    with Path(os.environ["RECORDS"]).open("a") as file:
        file.write(json.dumps(line) + "\n")


def seconds_of(options: argparse.Namespace) -> float:
    """The length of run `n`: the same in every way, evenly spread between low and high."""
    share = options.n * GOLDEN % 1.0
    return float(options.low + (options.high - options.low) * share)


def train_with_wandb(options: argparse.Namespace) -> int:
    """Log until the time is over or a SIGTERM asks to save; the exit code."""
    import wandb  # noqa: PLC0415

    told: list[int] = []
    run = wandb.init()
    signal.signal(signal.SIGTERM, lambda signum, _: told.append(signum))
    record("init")
    end = time.monotonic() + seconds_of(options)
    while time.monotonic() < end and not told:
        run.log({"n": options.n})
        time.sleep(0.2)
    if not told:
        run.finish()
        return 0
    run.mark_preempting()
    run.finish(exit_code=PREEMPTED)
    time.sleep(options.close)
    return PREEMPTED


def main() -> int:
    """Train; the exit code."""
    options = parse()
    record("begin", BEGAN, BEGAN_WALL)
    atexit.register(record, "end")  # the first to be registered is the last to run
    if options.wandb:
        return train_with_wandb(options)
    time.sleep(seconds_of(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
