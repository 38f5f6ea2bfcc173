"""How long a sweep of short runs takes from the start of the first process to its last training.

Owns the measurement `throughput`. Start-up counts for all ways, and so does the last run's tail;
what processes do after the last training has ended is in a column of its own. Trainings use wandb
here always: without wandb.init() a run never ends for the server, and so the sweep does not.
"""

import argparse
from dataclasses import dataclass, field
from time import monotonic

from figures import median, ratio
from report import Comparison, Measurement, Report, progress
from ways import AGENT, LOOP, OURS, Job, Way, playing, wait_for

EXAMPLES = """\
examples:
  scripts/bench throughput                  24 runs of 3 s on 4 slots, all three ways
  scripts/bench throughput --runs 100 --slots 8
"""
SHORT = ("--runs", "2", "--slots", "1", "--seconds", "0.3", "--rounds", "1",
         "--ways", OURS, AGENT)  # fmt: skip


@dataclass(slots=True)
class Times:
    """Of one way, a number for each round; in seconds from its start."""

    trained: list[float] = field(default_factory=list)
    """Until the last training had ended."""
    exited: list[float] = field(default_factory=list)
    """Until every process that was started had ended."""
    busy: list[float] = field(default_factory=list)
    """Share of the slots' time until then in which a training ran."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a run (default: 3)")
    parser.add_argument("--rounds", type=int, default=2, help="of each way, in turns (default: 2)")
    parser.add_argument("--ways", nargs="+", choices=[OURS, AGENT, LOOP],
                        default=[OURS, AGENT, LOOP])  # fmt: skip
    parser.add_argument("--patience", type=float, default=1200.0, help="seconds for one round")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    job = Job(options.slots, options.seconds, options.seconds, runs=options.runs)
    found = {name: Times() for name in options.ways}
    for turn in range(options.rounds):
        for name in options.ways:
            progress(f"throughput: round {turn + 1}, {name}")
            _round(options, name, turn, job, found[name])
    report = Report(
        "throughput",
        f"{options.runs} runs of {options.seconds:g} s on {options.slots} slots",
        ["way", "rounds", "last trained, s", "all exited, s", "slots busy, %", "trained/ours"],
        notes=["Seconds from the start of the way's first process; medians of the rounds.",
               "Busy: the share of the slots' time until then in which a training ran."],
    )  # fmt: skip
    ours = median(found[OURS].trained) if OURS in found else None
    for name, times in found.items():
        trained = median(times.trained)
        compared = ratio(trained, ours) if ours else None
        report.rows.append([name, len(times.trained), trained, median(times.exited),
                            100 * median(times.busy), compared])  # fmt: skip
        if ours and name != OURS:
            report.comparisons.append(Comparison(report.title, "s", ours, name, trained))
    return report


def _round(options: argparse.Namespace, name: str, turn: int, job: Job, times: Times) -> None:
    directory = options.scratch / f"{turn}-{name.replace(' ', '-')}"
    flags = ("--until-done",)
    with playing(name, directory, job, *flags) as (way, emulator):
        wait_for(way, "every run has ended", lambda: len(way.records("end")) >= job.runs,
                 options.patience)  # fmt: skip
        wait_for(way, "every process has ended", way.ended, options.patience)
        exited = monotonic() - way.started_at
        states = {run["state"] for run in emulator.state()["runs"].values()}
        assert states == {"finished"}, states
        trained = max(record["at"] for record in way.records("end")) - way.started_at
    times.trained.append(trained)
    times.exited.append(exited)
    times.busy.append(_busy_seconds(way) / (trained * job.slots))


def _busy_seconds(way: Way) -> float:
    spans: dict[int, dict[str, float]] = {}
    for record in way.records():
        spans.setdefault(record["pid"], {})[record["what"]] = record["at"]
    return sum(span["end"] - span["begin"] for span in spans.values())


THROUGHPUT = Measurement("throughput", "a sweep of short runs to its end", EXAMPLES, add_options,
                         measure, SHORT)  # fmt: skip
