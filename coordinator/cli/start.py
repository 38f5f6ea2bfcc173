"""The entry point: runs the command line and turns every result into an exit code.

Whatever happens, the user sees one line and never a traceback. `entry` parses command lines. The
most frequent ones are handled here with the same output, because loading click takes longer than
they do. It must not parse anything itself.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from coordinator import __version__
from coordinator.cli.exit_codes import ExitCode
from coordinator.cli.terminal import DEFAULT_COLUMNS, columns, prepare
from coordinator.core.plain import plain
from coordinator.errors import CoordinatorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

PROGRAM = "coordinatorctl"
HELP_FILE = "help.txt"
"""What click prints for --help on 80 columns; tests/cli/test_start.py compares the two."""


def main(argv: Sequence[str] | None = None) -> "NoReturn":
    """Run coordinatorctl with `argv` (default: the process's own) and exit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = _run(arguments)
    # A reader that exits while we write the last lines must not cause a traceback at exit.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.exit(code)
    _forget_output()
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    prepare(as_json="--json" in arguments)
    try:
        code = _carry_out(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return ExitCode.OUTPUT_CLOSED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        message, code = _explain(error)
        _report(message, code, as_json="--json" in arguments)
    return code


def _carry_out(arguments: list[str]) -> int:
    match arguments:
        case ["--help"] | ["-h"] if columns(os.environ) >= DEFAULT_COLUMNS:
            return _print_help()
        case ["--version"]:
            sys.stdout.write(f"{PROGRAM}, version {__version__}\n")
            return ExitCode.DONE
        case ["status"] | ["status", "--json"] | ["--json", "status"]:
            from coordinator.cli.client import client_at  # noqa: PLC0415 - not for --help
            from coordinator.cli.status import status  # noqa: PLC0415

            return status(client_at(None), as_json="--json" in arguments)
        case _:
            from coordinator.cli.entry import run  # noqa: PLC0415 - click: longer than the above

            return run(arguments)


def _print_help() -> int:
    place = os.path.dirname(__file__)  # noqa: PTH120 - pathlib takes longer than the rest
    with open(os.path.join(place, HELP_FILE), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        sys.stdout.write(file.read())
    return ExitCode.DONE


def _explain(error: Exception) -> tuple[str, int]:
    """One line about `error` and the exit code that goes with it."""
    match error:
        case CoordinatorError():
            return str(error), error.exit_code
        case OSError():
            return f"cannot write the output: {error.strerror or error}", ExitCode.FAILED
        case _:
            defect = f"a bug in coordinatorctl {__version__}"
            what = f"{type(error).__name__}: {error}"
            return f"{defect} ({what}); please report it", ExitCode.FAILED


def _report(message: str, code: int, *, as_json: bool) -> None:
    line = plain(" ".join(message.split()))
    with suppress(OSError):
        sys.stderr.write(f"{PROGRAM}: {line}\n")
    if as_json:
        import json  # noqa: PLC0415 - not for --help

        with suppress(OSError):
            sys.stdout.write(json.dumps({"error": line, "exit_code": int(code)}) + "\n")


def _forget_output() -> None:
    """Discard output that is still buffered for a reader that has exited."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
