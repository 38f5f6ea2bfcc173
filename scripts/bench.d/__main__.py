"""scripts/bench: ratios of our own speed and size to other ways of doing the same.

Owns the options, the order and the exit codes. Each measurement is a module of its own beside this
one; it takes all ways in turns in one run, since bare figures say more of the machine than of us.
"""

import argparse
import json
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from gap import GAP
from handoff import HANDOFF
from idle import IDLE
from killed import KILLED
from leases import LEASES
from machine import facts
from memory import MEMORY
from report import Measurement, Report, as_document, print_report, print_summary, progress
from start import START
from status import STATUS
from throughput import THROUGHPUT

MEASUREMENTS = [GAP, THROUGHPUT, START, HANDOFF, KILLED, STATUS, MEMORY, LEASES, IDLE]
ALL = "all"
EXAMPLES = """\
examples:
  scripts/bench all                        everything, one after the other, and a summary
  scripts/bench all --json results.json
  scripts/bench all --short                the smallest shape of each: shows that it works
  scripts/bench gap --slots 4              one measurement; scripts/bench gap --help has more
  scripts/bench leases --rounds 200        steadier numbers

exit codes: 0 all was measured · 1 something was not · 2 usage · 130 interrupted

Whatever else the machine does is in the figures: leave it alone meanwhile.
"""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=__doc__.splitlines()[0] if __doc__ else "",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="MEASUREMENT")
    _add_common(commands.add_parser(ALL, help="all of them, then a summary"))
    for one in MEASUREMENTS:
        command = commands.add_parser(
            one.name, help=one.about, description=one.about, epilog=one.examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        one.add_options(command)
        _add_common(command)
    options = parser.parse_args(arguments)
    if options.short and options.what != ALL:  # later options win, so these can be overridden
        short = next(one.short for one in MEASUREMENTS if one.name == options.what)
        options = parser.parse_args([options.what, *short, *arguments[1:]])
    return options


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--short", action="store_true", help="its smallest shape; proves nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave logs and records in DIR")


def main() -> int:
    """Measure what is named; the exit code."""
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    about = facts()
    for name, value in about.items():
        print(f"{name:9} {value}")
    sys.stdout.flush()
    reports, failed = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        for one in [one for one in MEASUREMENTS if options.what in {ALL, one.name}]:
            report = _measured(one, options, (options.keep or Path(scratch)) / one.name)
            if report is None:
                failed.append(one.name)
            else:
                print_report(report)
                reports.append(report)
            if options.json:  # after each, so that what is interrupted has left something
                document = {
                    "about": about,
                    "failed": failed,
                    "reports": [*map(as_document, reports)],
                }
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    print_summary(reports)
    if failed:
        print(f"\nnot measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _measured(one: Measurement, options: argparse.Namespace, scratch: Path) -> Report | None:
    """None when it could not be measured; what was in the way has been said then."""
    if options.what == ALL:
        options = parse([one.name, *(["--short"] if options.short else [])])
    options.scratch = scratch
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        return one.measure(options)
    except Exception as error:
        # Whatever it was, hours of other measurements must not be lost for it.
        traceback.print_exception(error)
        progress(f"{one.name} could not be measured: {error}")
        return None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
