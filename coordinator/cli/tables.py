"""Prints status, runs, leases and nodes for a person.

Owns layout and colour. Scripts use --json; nothing here is an interface. It must stay readable at
80 columns and must print what the daemon says as plain text, never as markup.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.cli.durations import show_duration
from coordinator.core.cluster import LeaseDetailView, NodeView
from coordinator.core.model import NodeState, Outcome, SlotState
from coordinator.core.protocol import LeaseView, RunView, SlotView, StatusView

_SLOT_STYLES = {
    SlotState.IDLE: "dim",
    SlotState.CLAIMING: "cyan",
    SlotState.STARTING: "cyan",
    SlotState.RUNNING: "green",
    SlotState.STOPPING: "yellow",
    SlotState.CLOSING: "yellow",
}
_UNKNOWN_AGE_SECONDS = 1e8
"""Three years: the age of a lease that was written anew after a wipe is larger, and unknown."""
_GOOD_OUTCOMES = frozenset({Outcome.FINISHED, Outcome.PREEMPTED})


def print_status(status: StatusView, now: datetime) -> None:
    """The node, what is wrong, the slots, the outside world."""
    busy = sum(slot.run_id is not None for slot in status.slots)
    style = "green" if status.state is NodeState.RUNNING else "yellow"
    shown: list[RenderableType] = [
        Text.assemble((status.node, "bold"), "  ", (status.state.value, style), "  ", status.sweep)
    ]
    if status.degraded:
        shown.append(Text("DEGRADED", "bold red"))
        shown.extend(Text(f"  ! {reason}", "red") for reason in status.degraded)
    if status.slots:
        shown.append(_slots(status.slots, now))
    redis, upstream = status.redis, status.upstream
    place = "embedded, " if redis.embedded else ""
    rows = [
        ("slots", f"{busy} busy, {len(status.slots)} in all, {status.desired_slots} wanted"),
        ("warm agents", str(status.warm_agents)),
        (
            "redis",
            _words(redis.state, redis.url, f"{place}{redis.leases_held} leases held", redis.detail),
        ),
        (
            "upstream",
            _words(upstream.state, upstream.url, f"sweep {upstream.sweep_state}", upstream.detail),
        ),
        ("daemon", f"{status.version}, pid {status.pid}, up {_since(status.started, now)}"),
    ]
    _print(*shown, _grid(rows))


def print_runs(runs: Sequence[RunView], now: datetime) -> None:
    """One line for each stay."""
    table = _table(["run", "node", "slot", "kind", "outcome", "exit", "started", "took"])
    for run in runs:
        word = run.outcome.value if run.outcome else "running"
        style = "" if run.outcome is None else "red"
        style = "green" if run.outcome in _GOOD_OUTCOMES else style
        ended = run.signal or ("" if run.exit_code is None else str(run.exit_code))
        table.add_row(
            _cell(run.run_id),
            _cell(run.node),
            _cell(run.slot),
            _cell(run.kind.value),
            Text(word, style, overflow="fold"),
            _cell(ended),
            _cell(_ago(run.started, now)),
            _cell(_took(run, now)),
        )
    _print_or(table, runs, "no runs yet")


def print_leases(leases: Sequence[LeaseView]) -> None:
    """One line for each lease."""
    table = _table(["run", "owner", "slot", "state", "kind", "fence", "age", "expires"])
    for lease in leases:
        table.add_row(
            _cell(lease.run_id),
            _cell(lease.owner),
            _cell(lease.slot),
            Text(lease.state, "green" if lease.state == "held" else "yellow"),
            _cell(lease.kind.value),
            _cell(lease.fence),
            _cell(_age(lease.age_seconds)),
            _cell(_left(lease.expires_in_seconds)),
        )
    _print_or(table, leases, "no leases")


def print_lease(lease: LeaseDetailView, now: datetime) -> None:
    """One lease, line by line."""
    slot = "" if lease.slot is None else f"slot {lease.slot}"
    rows = [
        ("run", lease.run_id),
        ("state", _words(lease.state, "its training is ending" if lease.closing else "")),
        ("holder", _words(lease.owner, slot)),
        ("fence", str(lease.fence)),
        ("got it", f"{_age(lease.age_seconds)} ago, by {lease.why}, as a {lease.kind.value}"),
        ("last renewal", f"{_age(lease.silent_seconds)} ago"),
        ("deadline", _left(lease.expires_in_seconds)),
        ("claimable", _left(lease.claimable_in_seconds)),
    ]
    if lease.handoff_to and lease.handoff_seconds > 0:
        rows.append(("kept for", f"{lease.handoff_to}, {show_duration(lease.handoff_seconds)}"))
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
    _print(_grid(rows))


def print_nodes(nodes: Sequence[NodeView]) -> None:
    """One line for each node."""
    table = _table(["node", "", "seen", "state", "slots", "leases", "version", "pid"])
    for node in nodes:
        slots = None if node.slots is None else f"{node.busy or 0}/{node.slots}"
        table.add_row(
            _cell(node.node),
            Text("alive" if node.alive else "silent", "green" if node.alive else "red"),
            _cell(f"{show_duration(node.silent_seconds)} ago"),
            _cell(node.state),
            _cell(slots),
            _cell(node.leases_held),
            _cell(node.version),
            _cell(node.pid),
        )
    _print_or(table, nodes, "no node was seen within a day")


def _slots(slots: Iterable[SlotView], now: datetime) -> Table:
    table = _table(["slot", "state", "run", "pid", "gpus", "since"])
    for slot in slots:
        leaving = " (leaving)" if slot.draining else ""
        table.add_row(
            _cell(slot.slot),
            Text(slot.state.value + leaving, _SLOT_STYLES[slot.state]),
            _cell(slot.run_id),
            _cell(slot.pid),
            _cell(",".join(slot.gpus) or None),
            _cell(_since(slot.since, now)),
        )
    return table


def _print(*shown: RenderableType) -> None:
    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        for part in shown:
            console.print(part)
    # Written here and not by rich, which would end the process when the reader has left.
    sys.stdout.write(captured.get())


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for label, value in rows:
        grid.add_row(Text(label, "dim"), Text(value, overflow="fold"))
    return grid


def _print_or(table: Table, rows: Sequence[object], nothing: str) -> None:
    _print(table if rows else nothing)


def _cell(value: object) -> Text:
    return Text("-" if value is None else str(value), overflow="fold")


def _words(*words: str) -> str:
    return "  ".join(word for word in words if word)


def _age(seconds: float) -> str:
    return "?" if seconds > _UNKNOWN_AGE_SECONDS else show_duration(seconds)


def _left(seconds: float) -> str:
    return f"in {show_duration(seconds)}" if seconds > 0 else f"{show_duration(-seconds)} ago"


def _past(what: str | None, node: str | None, moment: str | None, now: datetime) -> str:
    if what is None:
        return "-"
    return _words(what, f"on {node}" if node else "", _ago(moment, now) if moment else "")


def _seconds(earlier: str, later: datetime) -> float | None:
    """Seconds between two times; None when the daemon's is not one."""
    try:
        return (later - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return None


def _since(moment: str, now: datetime) -> str:
    seconds = _seconds(moment, now)
    return moment if seconds is None else show_duration(seconds)


def _ago(moment: str, now: datetime) -> str:
    seconds = _seconds(moment, now)
    return moment if seconds is None else f"{show_duration(seconds)} ago"


def _took(run: RunView, now: datetime) -> str:
    if run.ended is None:
        return _since(run.started, now)
    try:
        return _since(run.started, datetime.fromisoformat(run.ended))
    except ValueError:
        return run.ended
