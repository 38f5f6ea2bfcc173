"""How long a slot stands idle between two trainings: ours, bare agents and shell loops.

Owns the measurement `gap`. A gap is from the last word of one training process to the first word of
the next one on the same slot, written down by the trainings themselves with one clock.
"""

import argparse
from pathlib import Path

from figures import median, ratio, spread
from gaps import Gaps, in_events, recorded
from report import Cell, Comparison, Measurement, Report, progress
from ways import AGENT, LOOP, OURS, Job, Ours, Way, playing, wait_for

from tests.support.emulator import wait_until

TOGETHER, APART = "together", "apart"
SPREAD = 1 / 3, 5 / 3
"""Of the mean length: the shortest and the longest of runs that end apart."""
EVENTS = {
    "  exit seen to tree gone": ("run_exited", "tree_gone"),
    "  tree gone to leased": ("tree_gone", "lease_acquired"),
    "  tree gone to started": ("tree_gone", "run_started"),
}
"""Parts of our gap by the daemon's own events."""
EXAMPLES = """\
examples:
  scripts/bench gap                            1, 4 and 8 slots, all three ways: half an hour
  scripts/bench gap --slots 4 --ends together  one shape
  scripts/bench gap --no-wandb                 trainings that do not import wandb
  scripts/bench gap --gaps 20 --ways ours      steadier percentiles of ours alone
"""
SHORT = ("--slots", "1", "--ends", TOGETHER, "--gaps", "1", "--rounds", "1", "--seconds", "0.3",
         "--no-wandb", "--ways", OURS, AGENT)  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8], metavar="N")
    parser.add_argument("--ends", nargs="+", choices=[TOGETHER, APART], default=[TOGETHER, APART],
                        help="runs of one length, or of lengths that differ")  # fmt: skip
    parser.add_argument("--ways", nargs="+", choices=[OURS, AGENT, LOOP],
                        default=[OURS, AGENT, LOOP])  # fmt: skip
    parser.add_argument(
        "--gaps", type=int, default=5, help="of each slot in each round, after the first (5)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of each way, in turns (default: 1)")
    parser.add_argument("--seconds", type=float, default=3.0, help="mean length of a run")
    parser.add_argument(
        "--no-wandb", action="store_true", help="trainings that do not import wandb"
    )
    parser.add_argument("--patience", type=float, default=900.0, help="seconds for one round")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    report = Report(
        "gap",
        "seconds from the end of one training to the start of the next on its slot",
        ["slots", "runs end", "way", "gaps", "p50", "p90", "p99", "max", "first", "p50/ours"],
        notes=_notes(options),
    )
    for slots in options.slots:
        for ends in options.ends:
            _shape(options, slots, ends, report)
    return report


def _shape(options: argparse.Namespace, slots: int, ends: str, report: Report) -> None:
    """All rounds of one number of slots and one kind of runs."""
    low, high = (1.0, 1.0) if ends == TOGETHER else SPREAD
    job = Job(slots, low * options.seconds, high * options.seconds, wandb=not options.no_wandb)
    found = {name: Gaps() for name in (*options.ways, *EVENTS)}
    for turn in range(options.rounds):
        for name in options.ways:
            progress(f"gap: {slots} slots, runs end {ends}, round {turn + 1}, {name}")
            directory = options.scratch / f"{slots}-{ends}-{turn}-{name.replace(' ', '-')}"
            _round(options, name, directory, job, found)
    ours = median(found[OURS].later) if found.get(OURS) else None
    for name, gaps in found.items():
        if gaps.later:
            report.rows.append([slots, ends, *_row(name, gaps, ours)])
        if name in {AGENT, LOOP} and ours is not None:
            report.comparisons.append(Comparison(
                f"{slots} slots, runs end {ends}", "s", ours, name, median(gaps.later),
            ))  # fmt: skip


def _row(name: str, gaps: Gaps, ours: float | None) -> list[Cell]:
    found = spread(gaps.later)
    compared = None if ours is None or name in EVENTS else ratio(found.p50, ours)
    return [name, found.count, found.p50, found.p90, found.p99, found.most, median(gaps.first),
            compared]  # fmt: skip


def _round(
    options: argparse.Namespace, name: str, directory: Path, job: Job, found: dict[str, Gaps]
) -> None:
    """One way until each slot has its gaps; the others stay busy until the slowest has them."""
    with playing(name, directory, job) as (way, _):
        wait_for(way, f"{options.gaps} gaps of each of {job.slots} slots",
                 lambda: _complete(way, job.slots, options.gaps), options.patience)  # fmt: skip
        found[name].add(recorded(way.records()).values(), options.gaps)
        if isinstance(way, Ours):
            wait_until("the daemon has told of every start", lambda: _all_told(way), 10)
            for part, (begin, end) in EVENTS.items():
                found[part].add(in_events(way.events(), begin, end).values(), options.gaps)


def _all_told(way: Ours) -> bool:
    return len(way.events("run_started")) >= len(way.records("begin"))


def _complete(way: Way, slots: int, gaps: int) -> bool:
    begun: dict[int, int] = {}
    for record in way.records("begin"):
        begun[record["slot"]] = begun.get(record["slot"], 0) + 1
    return len(begun) == slots and min(begun.values()) >= gaps + 2


def _notes(options: argparse.Namespace) -> list[str]:
    kind = "do not import wandb" if options.no_wandb else "call wandb.init(), log and finish()"
    return [
        f"Runs of {options.seconds:g} s {kind}; {options.rounds} rounds of each way in turns.",
        "Each slot gives the same number of gaps. Its first gap is in the column 'first' alone.",
        "Indented rows: parts of our gaps by the daemon's events, for the same gaps.",
    ]


GAP = Measurement("gap", "idle time of a slot between two trainings", EXAMPLES, add_options,
                  measure, SHORT)  # fmt: skip
