"""The commands about the sweep itself: pause, resume, stop, cancel, for all its nodes.

Owns their arguments. The daemon runs `wandb sweep` and answers when it has ended.
"""

from typing import Literal

import click

from coordinator.cli.options import (
    CONTEXT,
    Settings,
    examples,
    pass_settings,
    require_command,
    shared,
    to_seconds,
)
from coordinator.core.protocol import ChangeSweep

CHANGE_SECONDS = 90.0
"""Longer than the daemon's limit for `wandb sweep`, so that its message arrives."""
GRACEFUL_SECONDS = 24 * 3600.0
"""A graceful cancel waits for the trainings; the daemon limits it by their grace."""


@click.group(
    "sweep",
    invoke_without_command=True,
    context_settings=CONTEXT,
    epilog=examples("sweep pause", "sweep resume", "sweep stop", "sweep cancel --graceful"),
)
@shared
@click.pass_context
def sweep_command(context: click.Context) -> None:
    """Change the state of the sweep on W&B, for all its nodes and agents.

    The daemon runs `wandb sweep --VERB` with its own account. After stop or cancel, no coordinatord
    resumes the sweep by itself, whatever [sweep] resume_sweep says, until `sweep resume`.
    """
    require_command(context)


def _change(
    settings: Settings,
    verb: Literal["pause", "resume", "stop", "cancel"],
    graceful: bool | None = None,
    grace_seconds: float | None = None,
) -> None:
    """Send it, wait for its end, print the daemon's message. Raises ControlError."""
    request = ChangeSweep(verb=verb, graceful=graceful, grace_seconds=grace_seconds)
    bound = GRACEFUL_SECONDS if verb == "cancel" else CHANGE_SECONDS
    message = settings.client().ask(request, bound).message
    settings.print_done(message)


@sweep_command.command("pause", context_settings=CONTEXT, epilog=examples("sweep pause"))
@shared
@pass_settings
def sweep_pause_command(settings: Settings) -> None:
    """Stop W&B from handing out runs; running trainings continue.

    `coordinatorctl pause` does the same for this node only.
    """
    _change(settings, "pause")


@sweep_command.command("resume", context_settings=CONTEXT, epilog=examples("sweep resume"))
@shared
@pass_settings
def sweep_resume_command(settings: Settings) -> None:
    """Resume a sweep that was paused, stopped or cancelled, or has finished."""
    _change(settings, "resume")


@sweep_command.command("stop", context_settings=CONTEXT, epilog=examples("sweep stop"))
@shared
@pass_settings
def sweep_stop_command(settings: Settings) -> None:
    """End the sweep; running trainings finish."""
    _change(settings, "stop")


@sweep_command.command(
    "cancel",
    context_settings=CONTEXT,
    epilog=examples("sweep cancel", "sweep cancel --graceful --grace 2m"),
)
@click.option(
    "--graceful/--at-once",
    default=None,
    help="Signal the trainings of this node and wait for their grace first, or let W&B's agents "
    "kill them at once.  [default: [preemption] graceful_cancel]",
)
@click.option(
    "--grace",
    "grace_seconds",
    callback=to_seconds,
    metavar="DURATION",
    help="With --graceful: time between signal and SIGKILL.  [default: [preemption] grace_seconds]",
)
@shared
@pass_settings
def sweep_cancel_command(
    settings: Settings, graceful: bool | None, grace_seconds: float | None
) -> None:
    """End the sweep and its running trainings, on every node.

    Other nodes end their trainings according to their own [preemption] graceful_cancel.
    """
    _change(settings, "cancel", graceful, grace_seconds)
