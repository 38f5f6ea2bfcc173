"""How much memory a node needs: each kind of process below the daemon, beside bare agents.

Owns the measurement `memory`. Processes are found by walking down from the daemon, and known by
what they are for, not by how they were started. Trainings only sleep, and do not count.
"""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep

import kernel
from figures import median
from report import Comparison, Measurement, Report, progress
from ways import AGENT, OURS, Job, Ours, Way, playing, wait_for

LONG = 3600.0
MIB = 1 << 20
TRAINING, SHIM, DAEMON = "training", "shim", "daemon"
HELPERS = {
    "redis": "Redis",
    "valkey": "Redis",
    "agent_server": "agent server",
    "wandb-core": "wandb-core of an agent",
}
"""What a command line must have in it."""
BUSY, READY, BARE = "agent with a run", "agent, ready", "bare agent"
ORDER = (DAEMON, "Redis", "agent server", READY, BUSY, "wandb-core of an agent", SHIM, BARE)
EXAMPLES = """\
examples:
  scripts/bench memory               1, 16 and 64 slots: four minutes, and 4 GB
  scripts/bench memory --slots 4
"""
SHORT = ("--slots", "1", "--settle", "0", "--bare", "1")


@dataclass(slots=True)
class Sizes:
    """Of all processes of one kind, in bytes."""

    private: list[int] = field(default_factory=list)
    pss: list[int] = field(default_factory=list)


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 16, 64], metavar="N")
    parser.add_argument("--bare", type=int, default=8, help="bare agents at most (default: 8)")
    parser.add_argument("--settle", type=float, default=15.0,
                        help="seconds after the last training has begun")  # fmt: skip
    parser.add_argument("--patience", type=float, default=900.0, help="seconds until all train")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    report = Report(
        "memory",
        "MiB of the processes of a node, trainings left out",
        ["slots", "process", "number", "private, each", "PSS, each", "private, all", "PSS, all"],
        notes=[
            "Each: the median. Private: what the process's end would free. PSS: with its share of",
            "what processes share. A library that one process alone has mapped is private to it,",
            "so a single process looks larger than one of many.",
        ],
    )
    for slots in options.slots:
        ours = _play(options, OURS, slots, report)
        bare_slots = min(slots, options.bare)
        bare = _play(options, AGENT, bare_slots, report)
        for what, number in (("private", 0), ("PSS", 1)):
            report.comparisons.append(Comparison(
                f"{what} for each of {slots} slots, daemon and all", "MiB",
                ours[number] / slots, f"{bare_slots} bare agents", bare[number] / bare_slots,
            ))  # fmt: skip
    return report


def _play(
    options: argparse.Namespace, name: str, slots: int, report: Report
) -> tuple[float, float]:
    """Private memory and PSS of everything but the trainings, in MiB."""
    progress(f"memory: {slots} slots, {name}")
    job = Job(slots, LONG, LONG, wandb=False)
    directory = options.scratch / f"{slots}-{name.replace(' ', '-')}"
    with playing(name, directory, job) as (way, _):
        wait_for(way, f"{slots} trainings", lambda: len(way.records("begin")) >= slots,
                 options.patience)  # fmt: skip
        if isinstance(way, Ours):
            wait_for(way, "an agent is ready", lambda: way.status().get("warm_agents"),
                     options.patience)  # fmt: skip
        sleep(options.settle)
        kinds = _sizes(way)
    for kind in sorted(kinds, key=lambda kind: (kind not in ORDER, kind)):
        report.rows.append([slots, kind, *_row([kinds[kind]], each=True)])
    report.rows.append([slots, f"everything, {name}", *_row(kinds.values(), each=False)])
    private, pss = (sum(sum(getattr(size, what)) for size in kinds.values()) / MIB
                    for what in ("private", "pss"))  # fmt: skip
    return private, pss


def _row(sizes: Iterable[Sizes], *, each: bool) -> list[float | int | None]:
    private = [size / MIB for one in sizes for size in one.private]
    pss = [size / MIB for one in sizes for size in one.pss]
    medians = [median(private), median(pss)] if each else [None, None]
    return [len(private), *medians, sum(private), sum(pss)]


def _sizes(way: Way) -> dict[str, Sizes]:
    """Every process that the way needs beside the trainings, by kind."""
    trainings = {record["pid"] for record in way.records("begin")}
    agents = {e["pid"] for e in way.events("agent_started")} if isinstance(way, Ours) else set()
    found: dict[str, Sizes] = {}
    for pid in [one for root in way.pids for one in (root, *kernel.descendants(root))]:
        kind = _kind(pid, way, trainings, agents)
        size = kernel.memory(pid)
        if kind != TRAINING and size is not None:
            found.setdefault(kind, Sizes()).private.append(size.private)
            found[kind].pss.append(size.pss)
    return found


def _kind(pid: int, way: Way, trainings: set[int], agents: set[int]) -> str:
    """What the process is for."""
    command, below = kernel.command(pid), kernel.descendants(pid)
    busy = bool(trainings.intersection(below))
    if pid in trainings:
        return TRAINING
    if pid in way.pids:
        return DAEMON if isinstance(way, Ours) else BARE
    if pid in agents:
        return BUSY if busy else READY
    if trainings.intersection(kernel.children(pid)) and isinstance(way, Ours):
        return SHIM
    known = (kind for mark, kind in HELPERS.items() if mark in command)
    return next(known, f"helper: {Path(command.split()[0]).name}")


MEMORY = Measurement("memory", "of each kind of process", EXAMPLES, add_options, measure, SHORT)
