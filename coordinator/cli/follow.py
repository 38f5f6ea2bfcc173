"""The commands that can follow a stream: logs and events.

Owns how lines are printed. JSON lines are passed on as the daemon sent them.
"""

import sys
from collections.abc import Callable, Iterator

import click

from coordinator.cli.options import CONTEXT, Settings, examples, pass_settings, shared
from coordinator.cli.terminal import require_reader

_MOST = 100_000
"""Maximum number of past entries in one answer of the daemon."""
Form = Callable[[bytes], str]


def _print(lines: Iterator[bytes], form: Form, *, at_once: bool) -> None:
    for line in lines:
        if line:
            sys.stdout.write(form(line) + "\n")
        if at_once:
            sys.stdout.flush()
            require_reader()


def _unchanged(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def _event_form() -> Form:
    import os  # noqa: PLC0415 - all of these only for a person

    from coordinator.cli.client import record  # noqa: PLC0415
    from coordinator.cli.terminal import shows_colour  # noqa: PLC0415
    from coordinator.telemetry.line import human_line  # noqa: PLC0415

    colour = shows_colour(os.environ)
    return lambda line: human_line(record(line), colour=colour)


def _log_form(target: str | None) -> Form:
    from coordinator.cli.client import record  # noqa: PLC0415 - only for a person
    from coordinator.core.plain import plain  # noqa: PLC0415

    def form(line: bytes) -> str:
        fields = record(line)
        text = str(fields.get("line", ""))
        who = plain(f"{fields.get('slot')} {fields.get('run_id')}")
        return text if target else f"[{who}] {text}"

    return form


def _query(count: int, follow: bool) -> dict[str, str]:
    return {"n": str(count), "follow": "1" if follow else "0"}


@click.command(
    "events", context_settings=CONTEXT, epilog=examples("events -n 50", "events -f --json")
)
@click.option("-n", "count", type=click.IntRange(0, _MOST), default=20, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new events.")
@shared
@pass_settings
def events_command(settings: Settings, count: int, follow: bool) -> None:
    """Show the last events of the daemon; times are in UTC."""
    lines = settings.client().lines("/v1/events", _query(count, follow))
    _print(lines, _unchanged if settings.as_json else _event_form(), at_once=follow)


@click.command(
    "logs", context_settings=CONTEXT, epilog=examples("logs", "logs 0 -f", "logs 1a2b3c4d -n 200")
)
@click.argument("target", required=False)
@click.option("-n", "count", type=click.IntRange(0, _MOST), default=20, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines.")
@shared
@pass_settings
def logs_command(settings: Settings, target: str | None, count: int, follow: bool) -> None:
    """Show the output of trainings. TARGET is a slot number or a run ID; default: all slots."""
    query = _query(count, follow) | ({} if target is None else {"target": target})
    lines = settings.client().lines("/v1/logs", query)
    _print(lines, _unchanged if settings.as_json else _log_form(target), at_once=follow)
