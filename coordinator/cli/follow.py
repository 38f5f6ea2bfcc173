"""The commands that may go on: logs and events.

Owns how lines are printed. JSON lines are passed on as the daemon sent them.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from coordinator.cli.options import CONTEXT, Settings, examples, pass_settings, shared
from coordinator.telemetry.line import human_line

_MOST = 100_000
"""The daemon gives no more of the past in one answer."""


def _print(lines: Iterator[bytes], form: Callable[[bytes], str], *, at_once: bool) -> None:
    for line in lines:
        sys.stdout.write(form(line) + "\n")
        if at_once:
            sys.stdout.flush()


def _query(count: int, follow: bool) -> dict[str, str]:
    return {"n": str(count), "follow": "1" if follow else "0"}


@click.command(
    "events", context_settings=CONTEXT, epilog=examples("events -n 50", "events -f --json")
)
@click.option("-n", "count", type=click.IntRange(0, _MOST), default=20, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with those to come.")
@shared
@pass_settings
def events_command(settings: Settings, count: int, follow: bool) -> None:
    """Show the last events of the daemon, times in UTC."""
    colour = sys.stdout.isatty()

    def form(line: bytes) -> str:
        return human_line(json.loads(line), colour=colour)

    lines = settings.client().lines("/v1/events", _query(count, follow))
    _print(lines, bytes.decode if settings.as_json else form, at_once=follow)


@click.command(
    "logs", context_settings=CONTEXT, epilog=examples("logs", "logs 0 -f", "logs 1a2b3c4d -n 200")
)
@click.argument("target", required=False)
@click.option("-n", "count", type=click.IntRange(0, _MOST), default=20, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Go on with those to come.")
@shared
@pass_settings
def logs_command(settings: Settings, target: str | None, count: int, follow: bool) -> None:
    """Show what trainings print. TARGET is a slot number or a run ID; all slots without one."""

    def form(line: bytes) -> str:
        record: dict[str, Any] = json.loads(line)
        text = str(record.get("line", ""))
        if target is not None:
            return text
        return f"[{record.get('slot')} {record.get('run_id')}] {text}"

    query = _query(count, follow) | ({} if target is None else {"target": target})
    lines = settings.client().lines("/v1/logs", query)
    _print(lines, bytes.decode if settings.as_json else form, at_once=follow)
