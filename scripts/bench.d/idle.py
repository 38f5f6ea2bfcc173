"""What a node costs while there is no work: processor time, and requests to W&B.

Owns the measurement `idle`: free slots on a sweep that is running and has nothing to hand out,
beside as many bare idle agents. The server's own count of requests is taken, so that nothing that
reaches it is missed.
"""

import argparse
from time import monotonic, sleep

import kernel
from report import Comparison, Measurement, Report, progress
from ways import AGENT, OURS, Job, Way, playing

from tests.support.emulator import Emulator, wait_until

MINUTE = 60.0
FOREVER = 1e6
EXAMPLES = """\
examples:
  scripts/bench idle                 4 slots, two minutes of each way
  scripts/bench idle --slots 8 --seconds 300
"""
SHORT = ("--slots", "1", "--settle", "0", "--seconds", "2")


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--slots", type=int, default=4, help="free slots, and bare agents")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each way (default: 120)")
    parser.add_argument("--settle", type=float, default=45.0,
                        help="seconds before: agents start, and are put to sleep")  # fmt: skip
    parser.add_argument("--patience", type=float, default=120.0, help="seconds until all ask")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    report = Report(
        "idle",
        f"{options.slots} free slots on a sweep without work, for each minute",
        ["way", "what", "processor seconds", "requests to W&B"],
        notes=[f"Measured for {options.seconds:g} s, {options.settle:g} s after the first request.",
               "Processes that ended meanwhile count; the server's own time does not."],
    )  # fmt: skip
    totals = {}
    for name in (OURS, AGENT):
        progress(f"idle: {name}")
        roots, everything, requests = _play(options, name)
        totals[name] = everything, requests
        if name == OURS:
            report.rows.append([name, "the daemon itself", roots, None])
            report.rows.append([name, "everything below it", everything - roots, None])
        report.rows.append([name, "together", everything, requests])
    for number, (what, unit) in enumerate((("processor time", "s/min"), ("requests", "/min"))):
        report.comparisons.append(Comparison(
            f"{options.slots} idle slots, {what}", unit, totals[OURS][number],
            f"{options.slots} bare agents", totals[AGENT][number],
        ))  # fmt: skip
    return report


def _play(options: argparse.Namespace, name: str) -> tuple[float, float, float]:
    """For each minute: seconds of what was started, of all processes, and requests."""
    job = Job(options.slots, 1.0, 1.0, runs=1)
    directory = options.scratch / name.replace(" ", "-")
    with playing(name, directory, job, prepare=_no_work) as (way, emulator):
        wait_until(f"{name} asks for work", lambda: _asked(emulator), options.patience)
        sleep(options.settle)
        began, before, requests = monotonic(), _used(way), _requests(emulator)
        sleep(options.seconds)
        minutes = (monotonic() - began) / MINUTE
        after, requests_after = _used(way), _requests(emulator)
        assert not way.records("begin"), "there was work"
        assert not way.ended(), f"{name} has ended"
    roots, everything = (later - earlier for earlier, later in zip(before, after, strict=True))
    return roots / minutes, everything / minutes, (requests_after - requests) / minutes


def _no_work(emulator: Emulator) -> None:
    """The sweep runs, but whoever is idle is given nothing."""
    emulator.faults({"op": "Heartbeat", "kind": "empty", "idle": True, "for_seconds": FOREVER})


def _asked(emulator: Emulator) -> bool:
    return bool(emulator.state()["operations"].get("Heartbeat"))


def _requests(emulator: Emulator) -> int:
    operations: dict[str, int] = emulator.state()["operations"]
    return sum(operations.values())


def _used(way: Way) -> tuple[float, float]:
    """Processor seconds so far: of the processes that were started, and with all below them."""
    below = [pid for root in way.pids for pid in kernel.descendants(root)]
    alone = kernel.processor_seconds(way.pids, with_reaped=False)
    return alone, kernel.processor_seconds([*way.pids, *below], with_reaped=True)


IDLE = Measurement("idle", "processor time and requests without work", EXAMPLES, add_options,
                   measure, SHORT)  # fmt: skip
