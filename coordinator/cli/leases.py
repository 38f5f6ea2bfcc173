"""The commands about leases: ls, show, release, steal.

Owns their arguments and JSON form. Whether a lease may be taken back is decided by the daemon and
Redis, by the fencing token that the operator saw; nothing here may guess one.
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
    help="The fencing token that `leases ls` shows; refused (exit code 6) if it has changed.",
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
    """Look at the leases of the sweep, over all its nodes, and take them back.

    steal is for a holder that lives: it is made to stop first. release is for one that is gone:
    others may claim its run at once.
    """
    require_command(context)


@leases_command.command(
    "ls", context_settings=CONTEXT, epilog=examples("leases ls", "leases ls --json")
)
@shared
@pass_settings
def leases_ls_command(settings: Settings) -> None:
    """List who holds which run."""
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
    """Show one lease, and what its run has been through: attempts, outcomes, dropped claims."""
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
@click.option("--to", metavar="NODE", help="Keep the run for this node, before all others.")
@shared
@pass_settings
def leases_steal_command(settings: Settings, run_id: str, fence: int, to: str | None) -> None:
    """Take a lease back from a holder that lives.

    The holder is told at its next renewal. It stops its training gracefully, once, and releases the
    lease when all its processes are gone; only then may others claim, or after one renewal and the
    grace ([redis] renew_seconds, grace_seconds) if it never answers. Use release when the holder is
    gone for good.

    --to keeps the run for NODE until then and one TTL longer; which agent is offered the run is
    still for W&B to say, and another node that is offered it waits.
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
    help="Also while its holder is alive; two trainings of the run may live until it notices.",
)
@shared
@pass_settings
def leases_release_command(settings: Settings, run_id: str, fence: int, force: bool) -> None:
    """Free the lease of a holder that is gone.

    Others may claim the run at once, instead of after its deadline and the grace. You vouch that
    its training has ended: nobody is asked to stop first. Refused (exit code 6) while the holder
    renews; use steal then.
    """
    _ask(settings, ReleaseLease(run_id=run_id, fence=fence, force=force))


def _ask(settings: Settings, request: StealLease | ReleaseLease) -> None:
    settings.print_done(settings.client().ask(request).message)
