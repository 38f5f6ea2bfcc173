"""scripts/killmatrix: SIGKILL every process in every phase of a run, alone and in pairs.

Owns the options, the table and the exit codes.
"""

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from tests.killmatrix.cells import EXPECTED, NOT_THERE, Phase, Victim, cell_of, cells
from tests.killmatrix.play import Plan, Result, pairs, play, single
from tests.support.scripts import run, say

EXAMPLES = """examples:
  scripts/killmatrix                            the whole matrix (five minutes on two processors)
  scripts/killmatrix --cell daemon:saving       one cell; repeatable
  scripts/killmatrix --pairs 30 --seed 7        random pairs instead; a seed repeats them
  scripts/killmatrix --list                     the names of the cells

exit codes: 0 all passed · 1 a check failed, or a fault never hit · 2 usage"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="scripts/killmatrix",
        description="Send SIGKILL to the daemon, an agent, a shim, a training or the embedded "
        "Redis in each phase of a run, with real daemons, agents and trainings. At the end every "
        "run must have finished, or failed by its own fault, with the right outcomes; no two "
        "trainings of a run may have overlapped, and no process may be left.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cell", action="append", default=[], metavar="VICTIM:PHASE")
    parser.add_argument("--pairs", type=int, default=0, metavar="N", help="play N random pairs")
    parser.add_argument("--seed", type=int, help="seed of the pairs (default: a new one, printed)")
    parser.add_argument("--jobs", type=int, default=3, help="number of parallel plays (default: 3)")
    parser.add_argument("--list", action="store_true", help="print the cells and exit")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all files in DIR")
    return parser.parse_args(arguments)


def plans_of(options: argparse.Namespace) -> list[Plan]:
    """What is to be played. Raises ValueError for a cell that there is not."""
    chosen = [single(cell_of(words)) for words in options.cell]
    if options.pairs:
        seed = random.randrange(10**6) if options.seed is None else options.seed
        say(f"seed {seed}")
        chosen += pairs(options.pairs, seed)
    return chosen or [single(cell) for cell in cells()]


def main() -> int:
    """Do what the options say; the exit code."""
    options = parse(sys.argv[1:])
    if options.list:
        say("\n".join(map(str, cells())))
        return 0
    try:
        plans = plans_of(options)
    except ValueError as error:
        sys.stderr.write(f"scripts/killmatrix: --cell: {error}; see --list\n")
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, too
    scratch = tempfile.TemporaryDirectory(prefix="kill-")
    with nullcontext(options.keep) if options.keep else scratch as directory:
        results = list(play_all(plans, Path(directory).absolute(), options.jobs))
    if not (options.pairs or options.cell):
        say(table(results))
    bad = [result for result in results if result.wrong]
    say(f"{len(results) - len(bad)} of {len(results)} plays passed")
    return 1 if bad else 0


def play_all(plans: list[Plan], directory: Path, jobs: int) -> Iterator[Result]:
    """Play, and tell each result at once."""
    with ThreadPoolExecutor(jobs) as pool:
        places = [directory / str(number) for number in range(len(plans))]
        for result in pool.map(play, plans, places):
            missed = f"; missed before: {result.missed}" if result.missed else ""
            say(f"{'WRONG' if result.wrong else 'ok':5} {result.plan}: {result.outcomes or '-'} "
                f"({result.seconds:.0f} s, {result.kills} killed, {result.restarts} restarts"
                f"{missed})")  # fmt: skip
            for wrong in result.wrong:
                say(f"      {wrong}")
            yield result


def table(results: Iterable[Result]) -> str:
    """Victims by phases, as Markdown."""
    found = {result.plan.hits[0]: result for result in results}
    lines = ["| phase | " + " | ".join(Victim) + " |", "|---" * (len(Victim) + 1) + "|"]
    for phase in Phase:
        row = []
        for victim in Victim:
            result = next(
                (r for c, r in found.items() if (c.victim, c.phase) == (victim, phase)), None
            )
            if victim not in EXPECTED[phase]:
                row.append(".")
            elif result is None or result.wrong:
                row.append("WRONG")
            else:
                row.append(f"ok: {result.outcomes or 'finished'}")
        lines.append(f"| {phase} | " + " | ".join(row) + " |")
    return "\n".join([*lines, f"`.`: {NOT_THERE}"])


if __name__ == "__main__":
    run(main)
