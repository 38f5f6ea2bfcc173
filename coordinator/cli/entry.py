"""The entry point: finds the command, runs it, and turns every end into an exit code.

Owns the list of commands and the last line of defence: whatever happens, the user sees one line and
never a traceback. A command's module is loaded only when it is used.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import click

from coordinator import __version__
from coordinator.cli.exit_codes import ExitCode
from coordinator.cli.options import CONTEXT, examples, require_command, shared
from coordinator.errors import CoordinatorError

PROGRAM = "coordinatorctl"
COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("show", "Show the node, its slots and what is wrong."),
    "scale": ("change", "Change the number of slots."),
    "drain": ("change", "Finish what runs, take nothing new."),
    "undrain": ("change", "Take work again after drain or preempt."),
    "pause": ("change", "Stop claiming; running trainings go on."),
    "resume": ("change", "Claim again after pause."),
    "preempt": ("change", "Give runs back: graceful signal, grace, kill."),
    "signal": ("change", "Send a signal to main training processes."),
    "stop": ("change", "End the daemon."),
    "logs": ("follow", "Show what trainings print."),
    "events": ("follow", "Show what the daemon does."),
    "runs": ("show", "List the runs that this node had."),
    "leases": ("leases", "Look at the sweep's leases, take them back."),
    "sweep": ("sweep", "Pause, resume, stop or cancel the sweep itself."),
    "nodes": ("show", "List the nodes that share the sweep's Redis."),
    "wait": ("waiting", "Wait until the daemon is in a given state."),
    "completion": ("completion", "Print the completion script for a shell."),
}
"""Name of each command: the module that has it (as `NAME_command`), and its line in --help."""


class _OutputClosedError(Exception):
    """Nobody reads our output any more."""


@contextmanager
def _closed_output() -> Iterator[None]:
    """Say it in our own way when nobody reads: click would make it exit code 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise _OutputClosedError from error


class _Root(click.Group):
    """The group of all commands, which imports a command when it is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"coordinator.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the line; --help prints here already."""
        with _closed_output():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _closed_output():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


@click.group(
    cls=_Root,
    invoke_without_command=True,
    context_settings=CONTEXT,
    epilog=examples("status", "scale +1 --wait", "events -f --json", "wait --for drained"),
)
@click.version_option(__version__, prog_name=PROGRAM)
@shared
@click.pass_context
def root(context: click.Context) -> None:
    """Look at and control a coordinatord on this machine.

    \b
    Exit codes: 0 done, 1 failed, 2 usage, 3 daemon not running, 4 timed out,
    5 degraded (status), 6 refused.
    """
    require_command(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run coordinatorctl with `argv` (default: the process's own) and exit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = _run(arguments)
    # A reader that left while we wrote the last lines must not show up as a traceback at exit.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.exit(code)
    _forget_output()
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # Output of trainings may hold anything; a narrow locale must not end in a traceback.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        result = root.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except _OutputClosedError:
        _forget_output()
        return ExitCode.OUTPUT_CLOSED
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except Exception as error:
        message, code = _explain(error)
        _report(message, code, as_json="--json" in arguments)
        return code
    return result if isinstance(result, int) else ExitCode.DONE


def _explain(error: Exception) -> tuple[str, int]:
    """One line about `error` and the exit code that goes with it."""
    match error:
        case CoordinatorError():
            return str(error), error.exit_code
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else PROGRAM
            return f"{error.format_message()} Try '{path} --help'.", ExitCode.USAGE
        case click.ClickException():
            return error.format_message(), ExitCode.FAILED
        case OSError():
            return f"the output cannot be written: {error.strerror or error}", ExitCode.FAILED
        case _:
            defect = f"a defect of coordinatorctl {__version__}"
            what = f"{type(error).__name__}: {error}"
            return f"{defect} ({what}); please report it", ExitCode.FAILED


def _report(message: str, code: int, *, as_json: bool) -> None:
    line = " ".join(message.split())
    with suppress(OSError):
        sys.stderr.write(f"{PROGRAM}: {line}\n")
    if as_json:
        import json  # noqa: PLC0415 - not for --help

        with suppress(OSError):
            sys.stdout.write(json.dumps({"error": line, "exit_code": int(code)}) + "\n")


def _forget_output() -> None:
    """Let what is still buffered for a reader that has left go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
