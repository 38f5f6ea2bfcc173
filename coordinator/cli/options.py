"""Shared parts of all commands: --json and --socket in either place, examples in the help.

Owns the settings of these options, and how an answer is printed. Every command loads it, so it must
import nothing heavy except click.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coordinator.core.plain import plain_lines

if TYPE_CHECKING:
    from coordinator.cli.client import Client

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"]}


@dataclass(slots=True)
class Settings:
    """The shared options, given before or after the command."""

    as_json: bool = False
    socket: str | None = None

    def client(self) -> "Client":
        """A client of the selected daemon. Raises ControlError for an unusable path."""
        from coordinator.cli.client import client_at  # noqa: PLC0415 - not for --help

        return client_at(self.socket)

    def print_data(self, data: object) -> None:
        """Print `data` of an answer as JSON."""
        import json  # noqa: PLC0415 - not for --help

        sys.stdout.write(json.dumps(data, ensure_ascii=False) + "\n")

    def print_done(self, message: str) -> None:
        """Print the daemon's message about the completed request, as text or JSON."""
        if self.as_json:
            self.print_data({"answer": "done", "message": message})
        else:
            sys.stdout.write(f"{plain_lines(message) or 'done'}\n")


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def shared(function: F) -> F:
    """Add --json and --socket; they end up in `Settings`, not among the parameters."""
    as_json = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_set_json,
        help="Print JSON, including errors.",
    )
    socket = click.option(
        "--socket",
        metavar="PATH",
        expose_value=False,
        callback=_set_socket,
        help="Control socket of the daemon.  [default: $COORDINATOR_SOCKET, else control.sock in "
        "the state directory]",
    )
    return as_json(socket(function))


def examples(*lines: str) -> str:
    """An epilog that shows `lines` unchanged."""
    return "\b\nExamples:\n" + "\n".join(f"  coordinatorctl {line}" for line in lines)


def require_command(context: click.Context) -> None:
    """Raise the usage error of a group without a command; it differs between versions of click."""
    if context.invoked_subcommand is None:
        raise click.UsageError("Which command?", context)


def _set_json(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    settings = context.ensure_object(Settings)
    settings.as_json = settings.as_json or value


def _set_socket(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    settings = context.ensure_object(Settings)
    if value == "":
        raise click.BadParameter("must not be empty", context, _parameter)
    if value is not None:
        settings.socket = value


def to_seconds(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """Callback of options that take a duration."""
    if value is None:
        return None
    from coordinator.cli.durations import parse_duration  # noqa: PLC0415 - few commands need it

    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", context, parameter) from error


def wait_options(function: F) -> F:
    """Add --wait and --timeout."""
    wait = click.option("--wait", is_flag=True, help="Wait until it is done.")
    return wait(timeout_option("With --wait: ")(function))


def timeout_option(prefix: str = "") -> Callable[[F], F]:
    """The option --timeout."""
    return click.option(
        "--timeout",
        "timeout_seconds",
        callback=to_seconds,
        metavar="DURATION",
        default="1h",
        show_default=True,
        help=f"{prefix}Give up after this long (exit code 4).",
    )


down_option = click.option(
    "--down",
    type=click.Choice(["drain", "preempt", "kill"]),
    help="What happens to the runs of removed slots: they finish, are preempted (graceful signal, "
    "grace, SIGKILL), or are killed.",
)
