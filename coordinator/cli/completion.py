"""Completion scripts for shells, made by click.

Owns the one command.
"""

import click
from click.shell_completion import get_completion_class

from coordinator.cli.options import CONTEXT, examples, shared


@click.command(
    "completion",
    context_settings=CONTEXT,
    epilog=examples("completion fish > coordinatorctl.fish"),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shared
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.BadParameter(f"{shell} is not supported.", param_hint="SHELL")
    root = context.find_root()
    complete = kind(root.command, {}, "coordinatorctl", "_COORDINATORCTL_COMPLETE")
    click.echo(complete.source())
