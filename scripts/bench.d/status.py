"""How long command lines take: coordinatorctl of an installed wheel, supervisorctl, bare Python.

Owns the measurement `status`. The wheel is built and installed into an environment of its own, as a
user has it: an editable installation starts more slowly. Its dependencies are those of the project.
"""

import argparse
import os
import site
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

from figures import ratio, spread
from report import Comparison, Measurement, Report, progress
from supervisors import SUPERVISORD, programs, sleeping, supervising, wait_listening
from ways import OURS, Job, Ours, playing, wait_for

from tests.support.node import REPOSITORY

LONG = 3600.0
PYTHON = "python -c pass"
OUR_STATUS, OUR_HELP = "coordinatorctl status", "coordinatorctl --help"
THEIR_STATUS, THEIR_HELP = "supervisorctl status", "supervisorctl --help"
AGAINST = ((OUR_STATUS, THEIR_STATUS), (OUR_STATUS, PYTHON), (OUR_HELP, THEIR_HELP),
           (OUR_HELP, PYTHON))  # fmt: skip
EXAMPLES = """\
examples:
  scripts/bench status               30 rounds, 4 slots, against a supervisord with 4 processes
  scripts/bench status --rounds 100
"""
SHORT = ("--rounds", "2", "--slots", "1")


def add_options(parser: argparse.ArgumentParser) -> None:
    """See `Measurement`."""
    parser.add_argument("--rounds", type=int, default=30, help="of each, in turns (default: 30)")
    parser.add_argument("--slots", type=int, default=4, help="and processes of supervisord")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds until slots train")


def measure(options: argparse.Namespace) -> Report:
    """See `Measurement`."""
    with ExitStack() as stack:
        commands = _commands(options, stack)
        found: dict[str, list[float]] = {name: [] for name in commands}
        progress(f"status: {options.rounds} rounds")
        for turn in range(options.rounds + 1):
            for name, run in commands.items():
                began = perf_counter()
                run()
                if turn:  # the first round fills the caches
                    found[name].append(1000 * (perf_counter() - began))
    report = Report(
        "status",
        "milliseconds of a command line, from its start to its end",
        ["command", "n", "p50", "p90", "max", "p50/python"],
        notes=[f"{options.slots} slots that train, and as many processes below supervisord."],
    )
    spreads = {name: spread(values) for name, values in found.items()}
    for name, one in spreads.items():
        report.rows.append([name, one.count, one.p50, one.p90, one.most,
                            ratio(one.p50, spreads[PYTHON].p50)])  # fmt: skip
    for ours, other in AGAINST:
        report.comparisons.append(
            Comparison(ours, "ms", spreads[ours].p50, other, spreads[other].p50)
        )
    return report


def _commands(options: argparse.Namespace, stack: ExitStack) -> dict[str, Callable[[], None]]:
    """What is run, by name, with everything that answers it."""
    progress("status: a wheel is built and installed")
    ctl = _installed_wheel(options.scratch) / "coordinatorctl"
    supervisorctl = programs() / "supervisorctl"
    job = Job(options.slots, LONG, LONG, wandb=False)
    node, _ = stack.enter_context(playing(OURS, options.scratch / "ours", job))
    assert isinstance(node, Ours)
    file = stack.enter_context(supervising(
        SUPERVISORD, options.scratch / "s", sleeping(LONG), options.slots, {}))  # fmt: skip
    wait_listening(file)
    wait_for(node, "all slots train", lambda: len(node.records("begin")) == options.slots,
             options.patience)  # fmt: skip
    socket = str(node.state_dir / "control.sock")
    lines = {
        OUR_STATUS: [str(ctl), "--socket", socket, "status"],
        THEIR_STATUS: [str(supervisorctl), "-c", str(file), "status"],
        OUR_HELP: [str(ctl), "--help"],
        THEIR_HELP: [str(supervisorctl), "--help"],
        PYTHON: [sys.executable, "-c", "pass"],
    }
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {name: partial(_run, line, env) for name, line in lines.items()}


def _run(line: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(line, env=env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        f"{line} ended with {done.returncode}: {done.stderr or done.stdout}"
    )


def _installed_wheel(scratch: Path) -> Path:
    """The directory with the commands of a fresh environment that has our wheel."""
    wheels, home = scratch / "wheel", scratch / "venv"
    _run_once("-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels))
    _run_once("-m", "venv", "--without-pip", str(home))
    (file,) = wheels.glob("*.whl")
    _run_once("-m", "pip", "--quiet", "--disable-pip-version-check", f"--python={home}/bin/python",
              "install", "--no-deps", "--no-index", str(file))  # fmt: skip
    (packages,) = home.glob("lib/python*/site-packages")
    # A line that names a directory adds it to the path, and its own .pth files are not read: so
    # the dependencies are found there, and the editable installation is not.
    (packages / "dependencies.pth").write_text(f"{site.getsitepackages()[0]}\n")
    return home / "bin"


def _run_once(*words: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, *words], cwd=REPOSITORY, env=env, check=True,
                   capture_output=True)  # fmt: skip


STATUS = Measurement("status", "the command line, beside supervisorctl", EXAMPLES, add_options,
                     measure, SHORT)  # fmt: skip
