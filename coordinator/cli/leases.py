"""The commands about leases: ls, show, release, steal.

Owns their arguments and JSON form. The daemon and Redis decide whether a lease can be taken back,
by the fencing token that the operator saw; nothing here may guess a token.
"""

from datetime import UTC, datetime

import click

from coordinator.cli.options import (
    CONTEXT,
    Settings,
    examples,
    pass_settings,
    require_command,
    shared,
)
from coordinator.cli.waiting import convert
from coordinator.core.cluster import LeaseDetailView
from coordinator.core.protocol import GetLease, GetLeases, LeaseView, ReleaseLease, StealLease

_fence_option = click.option(
    "--fence",
    type=click.IntRange(min=1),
    required=True,
    help="Fencing token from `leases ls`; refused (exit code 6) if it has changed.",
)


@click.group(
    "leases",
    invoke_without_command=True,
    context_settings=CONTEXT,
    epilog=examples(
        "leases ls",
        "leases show 1a2b3c4d",
        "leases steal 1a2b3c4d --fence 1767323045123",
        "leases release 1a2b3c4d --fence 1767323045123",
    ),
)
@shared
@click.pass_context
def leases_command(context: click.Context) -> None:
    """Show the leases of the sweep on all nodes, or take them back.

    Use steal if the holder is alive: it is stopped first. Use release if the holder is gone: others
    can claim the run at once.
    """
    require_command(context)


@leases_command.command(
    "ls", context_settings=CONTEXT, epilog=examples("leases ls", "leases ls --json")
)
@shared
@pass_settings
def leases_ls_command(settings: Settings) -> None:
    """List the leases and their holders."""
    data = settings.client().ask(GetLeases()).data
    if settings.as_json:
        settings.print_data(data)
        return
    from coordinator.cli.tables import print_leases  # noqa: PLC0415 - not for --json

    print_leases(convert(data, list[LeaseView]))


@leases_command.command(
    "show",
    context_settings=CONTEXT,
    epilog=examples("leases show 1a2b3c4d", "leases show 1a2b3c4d --json"),
)
@click.argument("run_id", metavar="RUN_ID")
@shared
@pass_settings
def leases_show_command(settings: Settings, run_id: str) -> None:
    """Show one lease and the history of its run: attempts, outcomes, dropped claims."""
    data = settings.client().ask(GetLease(run_id=run_id)).data
    if settings.as_json:
        settings.print_data(data)
        return
    from coordinator.cli.tables import print_lease  # noqa: PLC0415 - not for --json

    print_lease(convert(data, LeaseDetailView), datetime.now(UTC))


@leases_command.command(
    "steal",
    context_settings=CONTEXT,
    epilog=examples(
        "leases steal 1a2b3c4d --fence 1767323045123",
        "leases steal 1a2b3c4d --fence 1767323045123 --to node-b",
    ),
)
@click.argument("run_id", metavar="RUN_ID")
@_fence_option
@click.option("--to", metavar="NODE", help="Reserve the run for this node.")
@shared
@pass_settings
def leases_steal_command(settings: Settings, run_id: str, fence: int, to: str | None) -> None:
    """Take a lease back from a holder that is alive.

    The holder is told at its next renewal. It stops its training gracefully, once, and releases the
    lease when all its processes are gone. Only then can others claim the run, or, if the holder
    never answers, after one renewal and the grace ([redis] renew_seconds, grace_seconds). Use
    release if the holder is gone for good.

    --to reserves the run for NODE until then and for one more TTL. W&B still decides which agent is
    offered the run; another node that is offered it waits.
    """
    _ask(settings, StealLease(run_id=run_id, fence=fence, to=to))


@leases_command.command(
    "release",
    context_settings=CONTEXT,
    epilog=examples(
        "leases release 1a2b3c4d --fence 1767323045123",
        "leases release 1a2b3c4d --fence 1767323045123 --force",
    ),
)
@click.argument("run_id", metavar="RUN_ID")
@_fence_option
@click.option(
    "--force",
    is_flag=True,
    help="Release even if the holder is alive; two trainings of the run can overlap until it "
    "notices.",
)
@shared
@pass_settings
def leases_release_command(settings: Settings, run_id: str, fence: int, force: bool) -> None:
    """Release the lease of a holder that is gone.

    Others can claim the run at once, without waiting for the deadline and the grace. Make sure that
    its training has ended: nothing is stopped first. Refused (exit code 6) while the holder renews
    the lease; use steal then.
    """
    _ask(settings, ReleaseLease(run_id=run_id, fence=fence, force=force))


def _ask(settings: Settings, request: StealLease | ReleaseLease) -> None:
    settings.print_done(settings.client().ask(request).message)
