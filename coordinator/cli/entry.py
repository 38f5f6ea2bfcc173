"""The list of commands, and the parsing of a command line with click.

Owns the parsing. A command's module is loaded only when it is used. No exception of click may leave
this module: `start` does not know click.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from coordinator import __version__
from coordinator.cli.exit_codes import ExitCode
from coordinator.cli.options import CONTEXT, examples, require_command, shared
from coordinator.cli.start import PROGRAM
from coordinator.errors import ControlError

COMMANDS: dict[str, tuple[str, str]] = {
    "status": ("show", "Show the node, its slots and any problems."),
    "scale": ("change", "Change the number of slots."),
    "drain": ("change", "Finish running trainings, take no new work."),
    "undrain": ("change", "Take work again after drain or preempt."),
    "pause": ("change", "Stop claiming; running trainings continue."),
    "resume": ("change", "Claim again after pause."),
    "preempt": ("change", "Give runs back: graceful signal, grace, kill."),
    "signal": ("change", "Send a signal to main training processes."),
    "stop": ("change", "Stop the daemon."),
    "logs": ("follow", "Show the output of trainings."),
    "events": ("follow", "Show the daemon's events."),
    "runs": ("show", "List the runs of this node."),
    "leases": ("leases", "Show the sweep's leases or take them back."),
    "sweep": ("sweep", "Pause, resume, stop or cancel the sweep itself."),
    "nodes": ("show", "List the nodes that share the sweep's Redis."),
    "wait": ("waiting", "Wait until the daemon is in a given state."),
    "completion": ("completion", "Print the completion script for a shell."),
}
"""Name of each command: the module that has it (as `NAME_command`), and its line in --help."""


class _OutputClosedError(Exception):
    """The reader of our output is gone."""


@contextmanager
def _closed_output() -> Iterator[None]:
    """Convert BrokenPipeError to our own exception: click would exit with code 1."""
    try:
        yield
    except BrokenPipeError as error:
        raise _OutputClosedError from error


class _Root(click.Group):
    """The group of all commands, which imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the table."""
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
        """Parse the command line; --help prints here."""
        with _closed_output():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _closed_output():
            return super().invoke(ctx)


@click.group(
    cls=_Root,
    invoke_without_command=True,
    subcommand_metavar="COMMAND [ARGS]...",  # it differs between versions of click
    context_settings=CONTEXT,
    epilog=examples("status", "scale +1 --wait", "events -f --json", "wait --for drained"),
)
@click.version_option(__version__, prog_name=PROGRAM)
@shared
@click.pass_context
def root(context: click.Context) -> None:
    """Inspect and control coordinatord on this machine.

    \b
    Exit codes: 0 done, 1 failed, 2 usage, 3 daemon not running, 4 timed out,
    5 degraded (status), 6 refused.
    """
    require_command(context)


def run(arguments: list[str]) -> int:
    """Parse and execute `arguments`; returns the exit code of a command that has its own.

    Raises ControlError for an invalid command line, BrokenPipeError if the reader is gone, and
    whatever the command raises.
    """
    try:
        result = root.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except _OutputClosedError as error:
        raise BrokenPipeError from error
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else PROGRAM
        message = f"{error.format_message()} Try '{path} --help'."
        raise ControlError(message, ExitCode.USAGE) from error
    except click.ClickException as error:
        raise ControlError(error.format_message(), ExitCode.FAILED) from error
    return result if isinstance(result, int) else ExitCode.DONE
