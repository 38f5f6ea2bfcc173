"""The commands that show something once: status, runs, nodes.

Owns their arguments and JSON form, which is the daemon's own view, unchanged. Tables are printed by
`tables`, which is loaded only for a person.
"""

import json
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from coordinator.cli.exit_codes import ExitCode
from coordinator.cli.options import (
    CONTEXT,
    Settings,
    examples,
    pass_settings,
    shared,
)
from coordinator.cli.waiting import convert
from coordinator.core.cluster import NodeView
from coordinator.core.protocol import (
    GetNodes,
    GetRuns,
    GetStatus,
    RequestUnion,
    RunView,
    StatusView,
)


class _Health(msgspec.Struct, frozen=True):
    """The part of a status that decides the exit code, whatever a newer daemon says elsewhere."""

    degraded: list[str]


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))


def _data(settings: Settings, request: RequestUnion) -> Any:
    return settings.client().ask(request).data


@click.command("status", context_settings=CONTEXT, epilog=examples("status", "status --json"))
@shared
@pass_settings
@click.pass_context
def status_command(context: click.Context, settings: Settings) -> None:
    """Show the node, its slots and what is wrong; exit code 5 when something is."""
    data = _data(settings, GetStatus())
    health = convert(data, _Health)
    if settings.as_json:
        _print_json(data)
    else:
        from coordinator.cli.tables import print_status  # noqa: PLC0415 - rich is slow to load

        print_status(convert(data, StatusView), datetime.now(UTC))
    if health.degraded:
        click.echo(f"coordinatorctl: degraded: {'; '.join(health.degraded)}", err=True)
        context.exit(ExitCode.DEGRADED)


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
    help="At most so many, the newest; 0 for all.",
)
@shared
@pass_settings
def runs_command(settings: Settings, limit: int, run_id: str | None) -> None:
    """List the runs that this node had, newest first; one line for each stay in a slot.

    With RUN_ID: the stays of that run, on all nodes that share the Redis.
    """
    data = _data(settings, GetRuns(limit=limit, run_id=run_id))
    if settings.as_json:
        _print_json(data)
        return
    from coordinator.cli.tables import print_runs  # noqa: PLC0415 - rich is slow to load

    print_runs(convert(data, list[RunView]), datetime.now(UTC))


@click.command("nodes", context_settings=CONTEXT, epilog=examples("nodes", "nodes --json"))
@shared
@pass_settings
def nodes_command(settings: Settings) -> None:
    """List the nodes that share this sweep's Redis: alive or silent, slots, leases held.

    What a node says of itself is as old as its last renewal ([redis] renew_seconds). One that was
    stopped stays on the list, silent, for a day.
    """
    data = _data(settings, GetNodes())
    if settings.as_json:
        _print_json(data)
        return
    from coordinator.cli.tables import print_nodes  # noqa: PLC0415 - rich is slow to load

    print_nodes(convert(data, list[NodeView]))
