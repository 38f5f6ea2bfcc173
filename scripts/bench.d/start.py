"""How long it takes until trainings run: from nothing to the first, and from one slot to many.

Owns the measurement `start`. Ours starts from the daemon's command line, a bare agent from its own;
scaling starts from `coordinatorctl scale` or from the start of the further bare agents, while one
training runs already. Both end at the first word of the training concerned.
"""

import argparse
from time import monotonic, sleep

from figures import median, ratio
from report import Comparison, Measurement, Report, progress
from ways import AGENT, OURS, Bare, Job, Ours, Way, playing, wait_for

WAYS = (OURS, AGENT)
LONG = 600.0
EXAMPLES = """\
examples:
  scripts/bench start               the first training, and from 1 slot to 8
  scripts/bench start --to 4 --rounds 10
  scripts/bench start --no-wandb    trainings that do not import wandb
"""
SHORT = ("--rounds", "1", "--to", "2", "--settle", "0", "--no-wandb")


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--to", type=int, default=8, help="slots to scale to from 1 (default: 8)")
    parser.add_argument("--rounds", type=int, default=3, help="of each way, in turns (default: 3)")
    parser.add_argument("--settle", type=float, default=10.0,
                        help="seconds between the first training and the scaling")  # fmt: skip
    parser.add_argument("--no-wandb", action="store_true", help="trainings without wandb")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds for each wait")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    first: dict[str, list[float]] = {name: [] for name in WAYS}
    scaled: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(options.rounds):
        for name in WAYS:
            progress(f"start: round {turn + 1}, {name}")
            seconds = _round(options, name, turn)
            first[name].append(seconds[0])
            scaled[name].append(seconds[1])
    report = Report(
        "start",
        "seconds until trainings have begun",
        ["from", "to", "way", "rounds", "median", "max", "median/ours"],
        notes=["Until the first word of the training, or of the last one of those to come."],
    )
    _compare(report, "nothing", "1 training", first)
    _compare(report, "1 slot", f"{options.to} trainings", scaled)
    return report


def _compare(report: Report, start: str, end: str, found: dict[str, list[float]]) -> None:
    ours, theirs = (median(found[name]) for name in WAYS)
    for name, seconds in found.items():
        report.rows.append([start, end, name, len(seconds), median(seconds), max(seconds),
                            ratio(median(seconds), ours)])  # fmt: skip
    report.comparisons.append(Comparison(f"{start} to {end}", "s", ours, AGENT, theirs))


def _round(options: argparse.Namespace, name: str, turn: int) -> tuple[float, float]:
    """Seconds to the first training, and then to all of them."""
    job = Job(1, LONG, LONG, wandb=not options.no_wandb)
    directory = options.scratch / f"{turn}-{name.replace(' ', '-')}"
    with playing(name, directory, job) as (way, _):
        first = _last_begin(way, 1, options.patience) - way.started_at
        sleep(options.settle)  # what follows the first start must not fall into the scaling
        began = monotonic()
        if isinstance(way, Ours):
            way.ctl("scale", str(options.to))
        elif isinstance(way, Bare):
            way.add(options.to - 1)
        return first, _last_begin(way, options.to, options.patience) - began


def _last_begin(way: Way, count: int, patience: float) -> float:
    """When the last one of `count` trainings began."""
    wait_for(way, f"{count} trainings have begun", lambda: len(way.records("begin")) >= count,
             patience)  # fmt: skip
    begun: list[float] = sorted(record["at"] for record in way.records("begin"))
    return begun[count - 1]


START = Measurement("start", "until the first training, and until many", EXAMPLES, add_options,
                    measure, SHORT)  # fmt: skip
