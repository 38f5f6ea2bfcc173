"""What the audience sees while the demo runs.

Owns the words for events and the plain form, one line for each thing that happens. `live` draws
the same on a terminal. Nothing here changes anything.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

ACTS = 4


class Stage(Protocol):
    """Where the play is shown."""

    def act(self, number: int, title: str) -> None:
        """A new act begins."""

    def say(self, text: str) -> None:
        """Something was done that no daemon reports."""

    def happened(self, events: Sequence[dict[str, Any]]) -> None:
        """Daemons report."""


class PlainStage:
    """Progress as lines, for pipes, logs and CI."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._finished = 0

    def act(self, number: int, title: str) -> None:
        """A heading."""
        self.say(f"== act {number} of {ACTS}: {title}")

    def say(self, text: str) -> None:
        """One line with the seconds since the beginning."""
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)

    def happened(self, events: Sequence[dict[str, Any]]) -> None:
        """One line for each event that means something to people."""
        for event in events:
            words = sentence(event)
            if event["event"] == "run_ended" and event["outcome"] == "finished":
                self._finished += 1
                words = f"{words}, number {self._finished}"
            if words:
                self.say(words)


def sentence(event: dict[str, Any]) -> str | None:
    """An event in words of at most 70 characters; None for what is only noise here."""
    slot = event.get("slot")
    words = _of_daemon(event) or _of_run(event)
    where = f"{event['node']}{'  ' if slot is None else f'/{slot}'}"
    return f"{where}  {words}"[:70] if words else None


def _of_daemon(event: dict[str, Any]) -> str | None:
    match event["event"]:
        case "daemon_started":
            return f"coordinatord {event['version']} starts, pid {event['pid']}"
        case "daemon_stopped":
            return f"coordinatord ends with exit code {event['exit_code']}"
        case "notice_received":
            return f"{event['signal']} received: claims stop, trainings are asked to save"
        case _:
            return None


def _of_run(event: dict[str, Any]) -> str | None:
    run = event.get("run_id")
    match event["event"]:
        case "run_started":
            return f"run {run} {'continues' if event['kind'] == 'resume' else 'starts'}"
        case "run_ended":
            return f"run {run} ends: {event['outcome']} ({event['cause']})"
        case "claim_dropped":
            return f"run {run} is handed out again, not started: {_why(event)}"
        case "rescue_queued":
            return f"run {run} is queued for rescue: W&B does not queue it"
        case "lease_wait_began":
            return f"run {run} waits: {event['why']}"
        case _:
            return None


def _why(event: dict[str, Any]) -> str:
    if event["reason"] == "finished":
        return "it has finished"
    return f"node {event['holder']} has it" if event["holder"] else str(event["reason"])
