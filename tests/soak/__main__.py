"""scripts/soak: many short runs on a server that fails in every way.

Owns the options and the exit codes.
"""

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.soak.play import Plan, play
from tests.support.emulator import start_emulator
from tests.support.node import Node
from tests.support.redis import shared_redis
from tests.support.scripts import run, say


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description="Train runs of 0.5 to 3 s on several nodes while the W&B server answers 429, "
        "500, 502, one 404, 400, hands out nothing for a minute, stalls for 30 s and drops "
        "connections. All runs must finish.",
        epilog="exit codes: 0 all finished · 1 some did not, or another check failed · 2 usage",
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--slots", type=int, default=1, help="slots of each node (default: 1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all faults (default: 5)")
    parser.add_argument("--every", type=float, default=12.0, help="seconds between faults")
    parser.add_argument("--nothing", type=float, default=60.0, help="seconds without any work")
    parser.add_argument("--stall", type=float, default=30.0, help="seconds that a stall lasts")
    parser.add_argument("--minutes", type=float, default=60.0, help="give up after (default: 60)")
    parser.add_argument("--seed", default="20", help="seed of the server's random faults")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all files in DIR")
    return parser.parse_args(arguments)


def main() -> int:
    """Do what the options say; the exit code."""
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, too
    plan = Plan(options.runs, options.nodes, options.slots, options.rounds, options.every,
                options.nothing, options.stall, 60 * options.minutes)  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        return soak(plan, options.keep or Path(scratch), options.seed)


def soak(plan: Plan, directory: Path, seed: str) -> int:
    """Start the servers, play, report."""
    with ExitStack() as stack:
        emulator = start_emulator(directory / "emulator", "--seed", seed)
        stack.callback(emulator.stop)
        url = stack.enter_context(shared_redis(directory))

        def make(sweep: str, *flags: str, name: str) -> Node:
            node = Node(name, emulator, directory / "n", sweep, (*flags, "--redis-url", url))
            stack.callback(node.end)
            return node

        result = play(plan, emulator, make, say)
    say(f"{result.finished} of {result.runs} runs finished in {result.trainings} trainings and "
        f"{result.seconds:.0f} s; faults: {dict(result.faults)}")  # fmt: skip
    for wrong in result.wrong:
        say(f"WRONG: {wrong}")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    run(main)
