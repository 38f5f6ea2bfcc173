"""The commands that change something: scale, drain, pause, preempt, signal, stop and so on.

Owns their arguments. The daemon interprets them; each command prints the daemon's answer.
"""

import re

import click

from coordinator.cli.options import (
    CONTEXT,
    Settings,
    down_option,
    examples,
    pass_settings,
    shared,
    to_seconds,
    wait_options,
)
from coordinator.cli.waiting import DRAINED, GONE, SETTLED, DaemonProcess, wait_for
from coordinator.core.model import DownMode
from coordinator.core.protocol import (
    Drain,
    Pause,
    Preempt,
    RequestUnion,
    Resume,
    Scale,
    Signal,
    Stop,
    Undrain,
)
from coordinator.core.signals import signal_name, signal_number

_TARGET = re.compile(r"[+-]?\d+", re.ASCII)
_NEGATIVE = re.compile(r"-\d+", re.ASCII)


def _carry_out(settings: Settings, request: RequestUnion) -> str:
    """Send `request`; returns the daemon's message. Raises ControlError."""
    return settings.client().ask(request).message


class _ScaleCommand(click.Command):
    """A command whose argument can be "-1", which is not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move negative numbers behind "--", where click does not parse them."""
        if "--" not in args:
            numbers = [arg for arg in args if _NEGATIVE.fullmatch(arg)]
            others = [arg for arg in args if not _NEGATIVE.fullmatch(arg)]
            args = [*others, "--", *numbers] if numbers else args
        return super().parse_args(ctx, args)


@click.command(
    "scale",
    cls=_ScaleCommand,
    context_settings=CONTEXT,
    epilog=examples("scale 8", "scale +2 --wait", "scale -1 --down preempt"),
)
@click.argument("target", metavar="N|+K|-K")
@down_option
@wait_options
@shared
@pass_settings
def scale_command(
    settings: Settings, target: str, down: str | None, wait: bool, timeout_seconds: float
) -> None:
    """Change the number of slots to N, by +K or by -K.

    Slots to be removed finish their runs first, unless --down says otherwise.
    """
    if not _TARGET.fullmatch(target):
        raise click.BadParameter(f"{target!r} is not N, +K or -K.", param_hint="N|+K|-K")
    message = _carry_out(settings, Scale(target=target, down=DownMode(down or "drain")))
    if wait:
        wait_for(settings.client(), SETTLED, timeout_seconds)
    settings.print_done(message)


@click.command(
    "drain", context_settings=CONTEXT, epilog=examples("drain", "drain --wait --timeout 2h")
)
@wait_options
@shared
@pass_settings
def drain_command(settings: Settings, wait: bool, timeout_seconds: float) -> None:
    """Finish running trainings and take no new work, until undrain."""
    message = _carry_out(settings, Drain())
    if wait:
        wait_for(settings.client(), DRAINED, timeout_seconds)
    settings.print_done(message)


@click.command("undrain", context_settings=CONTEXT, epilog=examples("undrain"))
@shared
@pass_settings
def undrain_command(settings: Settings) -> None:
    """Take work again after drain or preempt."""
    settings.print_done(_carry_out(settings, Undrain()))


@click.command("pause", context_settings=CONTEXT, epilog=examples("pause"))
@shared
@pass_settings
def pause_command(settings: Settings) -> None:
    """Stop claiming work; running trainings continue."""
    settings.print_done(_carry_out(settings, Pause()))


@click.command("resume", context_settings=CONTEXT, epilog=examples("resume", "resume 1a2b3c4d"))
@click.argument("run_id", metavar="[RUN_ID]", required=False)
@shared
@pass_settings
def resume_command(settings: Settings, run_id: str | None) -> None:
    """Claim work again after pause, and close the breakers of slots, node and sweep.

    With RUN_ID: only release that run from quarantine, so that it is trained again.
    """
    settings.print_done(_carry_out(settings, Resume(run_id=run_id)))


@click.command(
    "preempt",
    context_settings=CONTEXT,
    epilog=examples("preempt", "preempt 2", "preempt 1a2b3c4d --grace 2m"),
)
@click.argument("target", required=False)
@click.option(
    "--grace",
    "grace_seconds",
    callback=to_seconds,
    metavar="DURATION",
    help="Time between the graceful signal and SIGKILL.  [default: [preemption] grace_seconds]",
)
@shared
@pass_settings
def preempt_command(settings: Settings, target: str | None, grace_seconds: float | None) -> None:
    """Give runs back: graceful signal, grace period, then SIGKILL to the whole process tree.

    TARGET is a slot number or a run ID; without it, the whole node is preempted and stays drained.
    """
    request = Preempt(target=target, grace_seconds=grace_seconds)
    settings.print_done(_carry_out(settings, request))


@click.command(
    "signal", context_settings=CONTEXT, epilog=examples("signal USR1 all", "signal SIGTERM 0")
)
@click.argument("signal", metavar="SIG")
@click.argument("target", metavar="TARGET")
@shared
@pass_settings
def signal_command(settings: Settings, signal: str, target: str) -> None:
    """Send signal SIG (a name or a number) to the main training process of TARGET.

    TARGET is a slot number, a run ID or "all".
    """
    try:
        name = signal_name(signal_number(signal))
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="SIG") from error
    settings.print_done(_carry_out(settings, Signal(signal=name, target=target)))


@click.command(
    "stop", context_settings=CONTEXT, epilog=examples("stop", "stop --down drain --wait")
)
@down_option
@wait_options
@shared
@pass_settings
def stop_command(settings: Settings, down: str | None, wait: bool, timeout_seconds: float) -> None:
    """Stop the daemon. Running trainings are preempted, unless --down says otherwise."""
    client = settings.client()
    with DaemonProcess(client) as process:
        message = client.ask(Stop(down=DownMode(down or "preempt"))).message
        if wait:
            wait_for(client, GONE, timeout_seconds, process)
    settings.print_done(message)
