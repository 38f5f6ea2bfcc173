"""What every command has: --json and --socket in either place, examples in its help.

Owns the settings that these options fill in. It must import click only, so that `--help` is fast.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from coordinator.cli.durations import parse_duration

if TYPE_CHECKING:
    from pathlib import Path

    from coordinator.cli.client import Client

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT = {"help_option_names": ["-h", "--help"]}


@dataclass(slots=True)
class Settings:
    """The options that all commands share, from wherever they stood."""

    as_json: bool = False
    socket: "Path | None" = None

    def client(self) -> "Client":
        """A client of the daemon that is meant. Raises ControlError for an unusable path."""
        from coordinator.cli.client import Client  # noqa: PLC0415 - not for --help
        from coordinator.config.state_dir import default_socket  # noqa: PLC0415

        return Client(self.socket or default_socket(os.environ))


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def shared(function: F) -> F:
    """Add --json and --socket; they end up in `Settings`, not among the parameters."""
    as_json = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_set_json,
        help="Print JSON, also for errors.",
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
    """An epilog that shows `lines` as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  coordinatorctl {line}" for line in lines)


def require_command(context: click.Context) -> None:
    """Raise the usage error of a group without a command; versions of click differ in theirs."""
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
        from pathlib import Path  # noqa: PLC0415 - not for --help

        settings.socket = Path(value)


def to_seconds(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """Callback of options that take a duration."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", context, parameter) from error


def wait_options(function: F) -> F:
    """Add --wait and its bound."""
    wait = click.option("--wait", is_flag=True, help="Return only when it is done.")
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
    help="How slots that go give up their runs: finish them, a graceful signal and its grace, or "
    "SIGKILL.",
)
