"""scripts/compat: run the same small job with several versions of wandb (agent and SDK).

Owns the options, the table and the exit codes.
"""

import argparse
import signal
import tempfile
from pathlib import Path

from tests.compat.play import Verdict, play
from tests.support.installations import wandb_python
from tests.support.scripts import run, say

VERSIONS = ["0.16.6", "0.19.11", "0.21.4", "0.24.2", "0.25.1", "0.28.2", "0.31.0"]


def main() -> int:
    """Do what the options say; the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/compat",
        description="For each version of wandb, train three runs with coordinatord on two nodes: "
        "one is preempted and continues on the other node, one is killed with its SDK and rescued.",
        epilog="exit codes: 0 every version passed · 1 a version failed · 2 usage",
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", default=VERSIONS,
                        help=f"default: {' '.join(VERSIONS)}")  # fmt: skip
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all files in DIR")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, too
    with tempfile.TemporaryDirectory(prefix="compat-") as scratch:
        base = options.keep or Path(scratch)
        verdicts = [_judged(version, base / version) for version in options.versions]
    say(f"\n{'wandb':10}{'agents by':11}{'signals forwarded':20}{'finished':10}"
        f"{'handed over':13}{'rescued':9}")  # fmt: skip
    for verdict in verdicts:
        say(f"{verdict.version:10}{verdict.start:11}{verdict.forwards!s:20}{verdict.finished:<10}"
             f"{verdict.handed_over:<13}{verdict.rescued:<9}{verdict.wrong or 'ok'}")  # fmt: skip
    return 1 if any(verdict.wrong for verdict in verdicts) else 0


def _judged(version: str, directory: Path) -> Verdict:
    try:
        verdict = play(version, wandb_python(version), directory)
    except (AssertionError, OSError) as error:
        verdict = Verdict(version, wrong=str(error))
    say(f"wandb {version}: {verdict.wrong or 'ok'}")
    return verdict


if __name__ == "__main__":
    run(main)
