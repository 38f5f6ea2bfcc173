"""Prints runs, leases and nodes as tables.

Owns the columns. Scripts use --json; this output is not an interface.
"""

import json
import sys
from collections.abc import Sequence
from datetime import datetime

from coordinator.cli import layout
from coordinator.cli.durations import ago, show_duration, since
from coordinator.cli.layout import Cell, cell
from coordinator.cli.terminal import standard_page
from coordinator.core.cluster import LeaseDetailView, NodeView
from coordinator.core.model import Outcome
from coordinator.core.protocol import LeaseView, RunView

OUTCOME_STYLES = {
    Outcome.FINISHED: layout.GREEN,
    Outcome.FAILED: layout.RED,
    Outcome.PREEMPTED: layout.GREEN,
    Outcome.INTERRUPTED: layout.RED,
    Outcome.PREEMPT_LOST: layout.RED,
    Outcome.CRASHED: layout.RED,
    Outcome.OOM: layout.RED,
    Outcome.CANCELLED: layout.RED,
    Outcome.LOST_CLAIM: layout.RED,
    Outcome.FENCED: layout.RED,
}
_UNKNOWN_AGE_SECONDS = 1e8
"""Three years: the age of a lease that was rewritten after a wipe is larger, and unknown."""


def print_runs(runs: Sequence[RunView], now: datetime) -> None:
    """One line for each stay."""
    header = ["run", "node", "slot", "kind", "outcome", "exit", "started", "took"]
    _print_table(header, [_run(run, now) for run in runs], "no runs yet")


def _run(run: RunView, now: datetime) -> list[Cell]:
    outcome = run.outcome
    ended = run.signal or ("" if run.exit_code is None else str(run.exit_code))
    return [
        cell(run.run_id),
        cell(run.node),
        cell(run.slot),
        cell(run.kind.value),
        cell(outcome.value, OUTCOME_STYLES[outcome]) if outcome else cell("running"),
        cell(ended),
        cell(ago(run.started, now)),
        cell(_took(run, now)),
    ]


def print_leases(leases: Sequence[LeaseView]) -> None:
    """One line for each lease."""
    header = ["run", "owner", "slot", "state", "kind", "fence", "age", "expires"]
    rows = [
        [
            cell(lease.run_id),
            cell(lease.owner),
            cell(lease.slot),
            cell(lease.state, layout.GREEN if lease.state == "held" else layout.YELLOW),
            cell(lease.kind.value),
            cell(lease.fence),
            cell(_age(lease.age_seconds)),
            cell(_left(lease.expires_in_seconds)),
        ]
        for lease in leases
    ]
    _print_table(header, rows, "no leases")


def print_lease(lease: LeaseDetailView, now: datetime) -> None:
    """One lease, line by line."""
    slot = "" if lease.slot is None else f"slot {lease.slot}"
    rows = [
        ("run", lease.run_id),
        ("state", _words(lease.state, "its training is ending" if lease.closing else "")),
        ("holder", _words(lease.owner, slot)),
        ("fence", str(lease.fence)),
        ("acquired", f"{_age(lease.age_seconds)} ago, by {lease.why}, as a {lease.kind.value}"),
        ("last renewal", f"{_age(lease.silent_seconds)} ago"),
        ("deadline", _left(lease.expires_in_seconds)),
        ("claimable", _left(lease.claimable_in_seconds)),
    ]
    if lease.handoff_to and lease.handoff_seconds > 0:
        rows.append(("reserved for", f"{lease.handoff_to}, {show_duration(lease.handoff_seconds)}"))
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in lease.outcomes.items())
    rows += [
        ("attempts", _words(str(lease.attempts), f"({outcomes})" if outcomes else "")),
        (
            "last outcome",
            _past(lease.last_outcome, lease.last_outcome_node, lease.last_outcome_at, now),
        ),
        ("drops", str(lease.drops)),
        ("last drop", _past(lease.last_drop, lease.last_drop_node, lease.last_drop_at, now)),
        ("rescues", str(lease.rescues)),
        ("program", lease.program),
        ("arguments", json.dumps(lease.args, ensure_ascii=False)),
    ]
    sys.stdout.write("\n".join(layout.pairs(rows, standard_page())) + "\n")


def print_nodes(nodes: Sequence[NodeView]) -> None:
    """One line for each node."""
    header = ["node", "", "seen", "state", "slots", "leases", "version", "pid"]
    rows = [
        [
            cell(node.node),
            cell("alive", layout.GREEN) if node.alive else cell("silent", layout.RED),
            cell(f"{show_duration(node.silent_seconds)} ago"),
            cell(node.state),
            cell(None if node.slots is None else f"{node.busy or 0}/{node.slots}"),
            cell(node.leases_held),
            cell(node.version),
            cell(node.pid),
        ]
        for node in nodes
    ]
    _print_table(header, rows, "no node was seen within a day")


def _print_table(header: Sequence[str], rows: Sequence[Sequence[Cell]], nothing: str) -> None:
    lines = layout.table(header, rows, standard_page()) if rows else [nothing]
    sys.stdout.write("\n".join(lines) + "\n")


def _words(*words: str) -> str:
    return "  ".join(word for word in words if word)


def _age(seconds: float) -> str:
    return "?" if seconds > _UNKNOWN_AGE_SECONDS else show_duration(seconds)


def _left(seconds: float) -> str:
    return f"in {show_duration(seconds)}" if seconds > 0 else f"{show_duration(-seconds)} ago"


def _past(what: str | None, node: str | None, moment: str | None, now: datetime) -> str:
    if what is None:
        return "-"
    return _words(what, f"on {node}" if node else "", ago(moment, now) if moment else "")


def _took(run: RunView, now: datetime) -> str:
    if run.ended is None:
        return since(run.started, now)
    try:
        return since(run.started, datetime.fromisoformat(run.ended))
    except ValueError:
        return run.ended
