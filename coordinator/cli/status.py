"""`coordinatorctl status`: the node, its slots and any problems.

Owns its request, output and exit code. Users and scripts repeat this command, so it must load
neither click nor msgspec: `start` runs it without click, and `fields` reads the answer without
msgspec.
"""

import json
import sys
from datetime import UTC, datetime

from coordinator.cli import layout
from coordinator.cli.client import Client
from coordinator.cli.durations import since
from coordinator.cli.exit_codes import ExitCode
from coordinator.cli.fields import Fields
from coordinator.cli.layout import Cell, cell
from coordinator.cli.terminal import Page, standard_page
from coordinator.core.plain import plain

REQUEST = b'{"do":"status"}'
"""`GetStatus` of core/protocol.py."""
NODE_STYLES = {
    "starting": layout.YELLOW,
    "running": layout.GREEN,
    "paused": layout.YELLOW,
    "draining": layout.YELLOW,
    "drained": layout.YELLOW,
    "stopping": layout.YELLOW,
}
SLOT_STYLES = {
    "idle": layout.DIM,
    "claiming": layout.CYAN,
    "starting": layout.CYAN,
    "running": layout.GREEN,
    "stopping": layout.YELLOW,
    "closing": layout.YELLOW,
    "dirty": layout.RED,
}

AGENT_STARTS = {"fork": "forked", "exec": "not forked"}
"""How agents are started."""


def status(client: Client, *, as_json: bool) -> ExitCode:
    """Print the status; DEGRADED if the daemon gives a reason. Raises ControlError."""
    data = client.post(REQUEST).data
    fields = Fields(data)
    degraded = fields.texts("degraded")
    if as_json:
        shown = json.dumps(data, ensure_ascii=False)
    else:
        shown = "\n".join(status_lines(fields, datetime.now(UTC), standard_page()))
    sys.stdout.write(shown + "\n")
    if not degraded:
        return ExitCode.DONE
    sys.stdout.flush()
    sys.stderr.write(f"coordinatorctl: degraded: {plain('; '.join(degraded))}\n")
    return ExitCode.DEGRADED


def status_lines(status: Fields, now: datetime, page: Page) -> list[str]:
    """The node, its problems, its slots, Redis and W&B."""
    slots = status.each("slots")
    lines = _head(status, page)
    if degraded := status.texts("degraded"):
        lines.append(page.styled("DEGRADED", f"{layout.BOLD};{layout.RED}"))
        for reason in degraded:
            lines += layout.paragraph(reason, layout.RED, page, indent="  ! ")
    if slots:
        header = ["slot", "state", "run", "pid", "gpus", "since"]
        lines += layout.table(header, [_slot(slot, now) for slot in slots], page)
    busy = sum(slot.text_or_none("run_id") is not None for slot in slots)
    desired = status.number("desired_slots")
    daemon = f"{status.text('version')}, pid {status.number('pid')}"
    rows = [
        ("slots", f"{busy} busy, {len(slots)} in total, {desired} wanted"),
        ("agents", _agents(status)),
        ("redis", _redis(status.inner("redis"))),
        ("upstream", _upstream(status.inner("upstream"))),
        ("daemon", f"{daemon}, up {since(status.text('started'), now)}"),
    ]
    return lines + layout.pairs(rows, page)


def _head(status: Fields, page: Page) -> list[str]:
    """Node, state and sweep: in one line if they fit."""
    state = status.text("state")
    parts = [
        (page.text(status.text("node")), layout.BOLD),
        (page.text(state), NODE_STYLES.get(state, "")),
        (page.text(status.text("sweep")), ""),
    ]
    if layout.size("  ".join(text for text, _ in parts)) <= page.columns:
        return ["  ".join(page.styled(text, style) for text, style in parts)]
    return [line for text, style in parts for line in layout.paragraph(text, style, page)]


def _slot(slot: Fields, now: datetime) -> list[Cell]:
    state = slot.text("state")
    leaving = " (leaving)" if slot.flag("draining", default=False) else ""
    return [
        cell(slot.number("slot")),
        cell(state + leaving, SLOT_STYLES.get(state, "")),
        cell(slot.text_or_none("run_id")),
        cell(slot.number_or_none("pid")),
        cell(",".join(slot.texts("gpus")) or None),
        cell(since(slot.text("since"), now)),
    ]


def _agents(status: Fields) -> str:
    ready = f"{status.number('warm_agents')} ready"
    start = status.inner("agent_start", {"way": ""})
    way = AGENT_STARTS.get(start.text("way"), start.text("way"))
    return _words(ready, ": ".join(word for word in (way, start.text("detail", "")) if word))


def _redis(redis: Fields) -> str:
    place = "embedded, " if redis.flag("embedded") else ""
    held = redis.number("leases_held", 0)
    leases = f"{place}{held} {'lease' if held == 1 else 'leases'} held"
    return _words(redis.text("state"), redis.text("url"), leases, redis.text("detail", ""))


def _upstream(upstream: Fields) -> str:
    sweep = f"sweep {upstream.text('sweep_state')}"
    return _words(upstream.text("state"), upstream.text("url"), sweep, upstream.text("detail", ""))


def _words(*words: str) -> str:
    return "  ".join(word for word in words if word)
