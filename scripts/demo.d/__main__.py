"""The demo: what wandb-coordinator does, shown with real processes on this machine.

Owns the options and the composition. Standard library only at the top: `scripts/demo --help` must
work before anything is installed.
"""

import argparse
import sys
from pathlib import Path

EXAMPLES = """\
examples:
  scripts/demo                      install into .venv-demo if need be, then show everything
  scripts/demo --runs 24            a longer sweep
  scripts/demo --plain              lines instead of a live picture
  scripts/demo --keep               leave logs, events and checkpoints to look at
  scripts/demo --leases off         the same without leases: see what W&B alone would do
  scripts/demo --python python3.12  the interpreter to install with
  scripts/demo --no-install         use what `python3` (or --python) has installed

exit codes:
  0    every check passed
  1    a check failed, or the demo could not be completed
  2    invalid option, or the installation failed
  130  interrupted; all processes and files were removed

It needs no account, and no network except for pip. It writes .venv-demo and one temporary
directory, which it deletes at the end. The W&B server is an emulator; wandb's command line, agents
and SDK are the real ones.
"""
FEWEST_RUNS = 8
MOST_RUNS = 60


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options; exits with 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Two nodes work on one W&B sweep; one is preempted, one training is killed.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bounds = f"{FEWEST_RUNS} to {MOST_RUNS}"
    parser.add_argument(
        "--runs", type=int, default=12, metavar="N", help=f"runs, {bounds} (default: 12)"
    )
    parser.add_argument("--plain", action="store_true", help="print progress as plain lines")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write facts and checks to FILE")
    parser.add_argument("--python", metavar="PYTHON", help="Python interpreter to install with")
    parser.add_argument("--no-install", action="store_true", help="do not install anything")
    parser.add_argument(
        "--leases",
        choices=["on", "off"],
        default="on",
        help="off: the demo must fail (default: on)",
    )
    options = parser.parse_args(arguments)
    if not FEWEST_RUNS <= options.runs <= MOST_RUNS:
        parser.error(f"--runs must be {bounds}")
    return options


def main() -> int:
    """Play, and judge."""
    options = parse(sys.argv[1:])
    try:
        from show import show  # noqa: PLC0415 - see the module
    except ModuleNotFoundError as error:
        print(f"scripts/demo: {error}; leave --no-install away, or name with --python an "
              "interpreter that has it", file=sys.stderr)  # fmt: skip
        return 2
    return show(options)


if __name__ == "__main__":
    sys.exit(main())
