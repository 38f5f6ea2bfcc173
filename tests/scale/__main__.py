"""scripts/scale: a thousand nodes on one Redis, and what it costs.

Owns the options and the exit codes.
"""

import argparse
import resource
import signal
import sys
import tempfile
from pathlib import Path

import anyio

from tests.scale.play import PHASES, Phase, Plan, play, scratch
from tests.scale.report import cells, details, report
from tests.support.scripts import run, say

EXAMPLES = """\
examples:
  scripts/scale                                   everything: 1,000 nodes x 8 slots, 9 minutes
  scripts/scale --phases herd,steady              some phases; most need the herd first
  scripts/scale --nodes 200 --seconds 20          smaller and shorter
  scripts/scale --server /usr/bin/redis-server    another server program

phases:
  idle     every node has free slots and asks for work; there is none
  over     the sweep is over; every node looks whether runs wait to be rescued
  herd     all slots claim at once; a third of the runs is handed out two to four times
  steady   nothing but renewals; at its end an operator asks for all nodes and all leases
  single   trainings end one by one and the next begin
  vanish   a tenth of the nodes loses power, as many new ones take their runs over
  restart  Redis is killed and comes back with its data; every tenth run is handed out once more
  wipe     the same, but it comes back empty
  preempt  all nodes are preempted, wave by wave; others wait for the hand-offs

exit codes:  0 no run was held twice or lost   1 one was, or a phase did not end   2 usage
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="scripts/scale",
        description="Many nodes, each with the real lease stack, on one real Redis. Without W&B.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8, help="on each node (default: 8)")
    parser.add_argument("--processes", type=int, default=4, help="that carry the nodes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of idle, steady and single")
    parser.add_argument("--phases", default=",".join(PHASES), metavar="NAME,NAME")
    parser.add_argument("--wave", type=int, default=50, help="nodes preempted at a time")
    parser.add_argument("--server", metavar="PROGRAM", help="redis-server or valkey-server")
    parser.add_argument("--seed", type=int, default=20)
    options = parser.parse_args(arguments)
    options.phases = tuple(options.phases.split(","))
    if unknown := set(options.phases) - set(PHASES):
        parser.error(f"no such phase: {', '.join(sorted(unknown))}")
    return options


def main() -> int:
    """Do what the options say; the exit code."""
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, too
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    plan = Plan(options.nodes, options.slots, options.processes, options.phases, options.seconds,
                options.wave, program=options.server, seed=options.seed)  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="scale-", dir=scratch()) as directory:
        result = anyio.run(play, plan, Path(directory), show)
    say(report(plan, result))
    return 1 if result.broken else 0


def show(phase: Phase) -> None:
    """A phase is over."""
    say("  ".join(cells(phase)))
    say("\n".join(details(phase)))


if __name__ == "__main__":
    run(main)
