"""The commands that show something once: status, runs, nodes.

Owns their arguments and JSON form, which is the daemon's view, unchanged. `status` and `tables`
produce the readable output. Each command loads only what it needs.
"""

from datetime import UTC, datetime

import click

from coordinator.cli.options import (
    CONTEXT,
    Settings,
    examples,
    pass_settings,
    shared,
)


@click.command("status", context_settings=CONTEXT, epilog=examples("status", "status --json"))
@shared
@pass_settings
@click.pass_context
def status_command(context: click.Context, settings: Settings) -> None:
    """Show the node, its slots and any problems; exit code 5 if there are any."""
    from coordinator.cli.status import status  # noqa: PLC0415 - the others do without

    context.exit(status(settings.client(), as_json=settings.as_json))


@click.command(
    "runs",
    context_settings=CONTEXT,
    epilog=examples("runs", "runs --limit 0 --json", "runs r1a2b3c4"),
)
@click.argument("run_id", required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show only the newest N; 0 for all.",
)
@shared
@pass_settings
def runs_command(settings: Settings, limit: int, run_id: str | None) -> None:
    """List the runs of this node, newest first; one line for each stay in a slot.

    With RUN_ID: the stays of that run on all nodes that share the Redis.
    """
    from coordinator.core.protocol import GetRuns, RunView  # noqa: PLC0415 - not for status

    data = settings.client().ask(GetRuns(limit=limit, run_id=run_id)).data
    if settings.as_json:
        settings.print_data(data)
        return
    from coordinator.cli.tables import print_runs  # noqa: PLC0415 - not for --json
    from coordinator.cli.waiting import convert  # noqa: PLC0415

    print_runs(convert(data, list[RunView]), datetime.now(UTC))


@click.command("nodes", context_settings=CONTEXT, epilog=examples("nodes", "nodes --json"))
@shared
@pass_settings
def nodes_command(settings: Settings) -> None:
    """List the nodes that share this sweep's Redis: alive or silent, slots, leases held.

    The data of a node are as old as its last renewal ([redis] renew_seconds). A stopped node stays
    on the list, silent, for a day.
    """
    from coordinator.core.cluster import NodeView  # noqa: PLC0415 - not for status
    from coordinator.core.protocol import GetNodes  # noqa: PLC0415

    data = settings.client().ask(GetNodes()).data
    if settings.as_json:
        settings.print_data(data)
        return
    from coordinator.cli.tables import print_nodes  # noqa: PLC0415 - not for --json
    from coordinator.cli.waiting import convert  # noqa: PLC0415

    print_nodes(convert(data, list[NodeView]))
