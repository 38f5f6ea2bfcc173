"""scripts/nemesis: faults one by one and mixed, and a judge.

Owns the options, the seed and the exit codes.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from tests.nemesis.daemons import play_daemons
from tests.nemesis.faults import FAULTS, LONG_FAULTS
from tests.nemesis.play import Plan, chosen, play
from tests.nemesis.report import report
from tests.nemesis.verdict import Result
from tests.nemesis.world import SETTINGS, quick_place
from tests.support.node import REPOSITORY
from tests.support.scripts import run, say

EXAMPLES = """\
examples:
  scripts/nemesis                             every fault for 5 s, then all mixed for 20 s
  scripts/nemesis --fault mixed --seconds 60  only mixed
  scripts/nemesis --fault "redis wiped"       one fault (see --list)
  scripts/nemesis --partitions long           faults longer than a lease: overlaps may happen,
                                              but must end soon after contact returns
  scripts/nemesis --partitions long --strict --fault "link black hole, long"
  scripts/nemesis --no-settling --fault "redis wiped"    must fail: the checker detects violations
  scripts/nemesis --no-leases                            must fail too
  scripts/nemesis --long                      compare 5,000 x 100 script steps to the model
  scripts/nemesis --daemons --minutes 10      whole daemons, real agents, the default lease times
  scripts/nemesis --daemons --partitions long --minutes 10
  scripts/nemesis --daemons --scaled --minutes 2   a third of these times

exit codes:  0 every guarantee held   1 one was violated, or the play could not be completed
             2 usage   130 interrupted
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="scripts/nemesis",
        description="Three nodes share a Redis. Faults are injected; no lease may be held twice.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="duration of each fault (default: 5)"
    )
    parser.add_argument(
        "--fault", default="all", metavar="NAME", help="name of a fault or its beginning, or mixed"
    )
    parser.add_argument("--seed", type=int, help="repeat the faults of an earlier play")
    parser.add_argument("--partitions", choices=["short", "long"], default="short")
    parser.add_argument("--strict", action="store_true", help='on_lease_loss = "strict"')
    parser.add_argument("--no-settling", action="store_true", help="must report overlaps")
    parser.add_argument("--no-leases", action="store_true", help="must report overlaps")
    parser.add_argument(
        "--daemons", action="store_true", help="run whole daemons instead of stacks"
    )
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="duration with --daemons (default: 10)"
    )
    parser.add_argument(
        "--scaled",
        action="store_true",
        help="with --daemons: use a third of the default lease times",
    )
    parser.add_argument("--long", action="store_true", help="compare the scripts to the model")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the files in DIR")
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    options = parser.parse_args(arguments)
    if options.fault not in {"all", "mixed"} and not chosen(options.fault, long=False):
        parser.error(f"no fault begins with {options.fault!r}; see --list")
    return options


def main() -> int:
    """Do what the options say; the exit code."""
    options = parse(sys.argv[1:])
    if options.list:
        say("\n".join(fault.name for fault in (*FAULTS, *LONG_FAULTS)))
        return 0
    if options.long:
        return model(examples=5000, steps=100)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    # The loop answers SIGINT by unwinding, which ends every process that was started.
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    say(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="nemesis-", dir=quick_place()) as scratch:
        directory = options.keep or Path(scratch)
        if options.daemons:
            result = anyio.run(daemons_of(options), directory)
        else:
            result = anyio.run(play, plan_of(options), directory)
    say(report(result, options.seed))
    return 1 if result.broken else 0


def daemons_of(options: argparse.Namespace) -> Callable[[Path], Coroutine[Any, Any, Result]]:
    """The long form as the options ask for it."""
    return partial(
        play_daemons,
        seconds=60 * options.minutes,
        seed=options.seed,
        long=options.partitions == "long",
        leases=not options.no_leases,
        scaled=options.scaled,
        say=say,
    )


def plan_of(options: argparse.Namespace) -> Plan:
    """What the options ask for."""
    long = options.partitions == "long"
    only_mixed = options.fault == "mixed"
    faults = [] if only_mixed else chosen(options.fault, long=long)
    mixed = options.seconds if only_mixed else 4 * options.seconds
    mode = "no-leases" if options.no_leases else "leases"
    return Plan(
        faults=faults,
        seconds=options.seconds,
        mixed_seconds=mixed if options.fault in {"all", "mixed"} else 0.0,
        long=long or any(fault.long for fault in faults),
        seed=options.seed,
        mode="no-settling" if options.no_settling else mode,
        settings=replace(SETTINGS, on_lease_loss="strict") if options.strict else SETTINGS,
    )


def model(*, examples: int, steps: int) -> int:
    """The real scripts against a plain model on a virtual clock, by hypothesis."""
    say(f"{examples} examples of up to {steps} steps; this takes minutes")
    env = {
        **os.environ,
        "COORDINATOR_MODEL_EXAMPLES": str(examples),
        "COORDINATOR_MODEL_STEPS": str(steps),
    }
    command = [sys.executable, "-m", "pytest", "-q", "--timeout", "7200"]
    command += ["tests/leases/test_model.py"]
    return subprocess.run(command, env=env, cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    run(main)
