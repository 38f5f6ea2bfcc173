"""Waits for the daemon to reach a state, with a time limit.

Owns the goals and the polling. It reads only; it must always end.
"""

import contextlib
import os
import re
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import click
import msgspec

from coordinator.cli.client import Client
from coordinator.cli.durations import show_duration
from coordinator.cli.exit_codes import ExitCode
from coordinator.cli.options import (
    CONTEXT,
    Settings,
    examples,
    pass_settings,
    shared,
    timeout_option,
)
from coordinator.core.model import NodeState, SlotState
from coordinator.core.protocol import GetStatus, StatusView
from coordinator.errors import ConnectionLostError, ControlError

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_POLL_SECONDS = 10.0
"""How long one status request may take."""
_NO_TRAINING = frozenset({SlotState.IDLE, SlotState.CLAIMING})


View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class Goal:
    """A state to wait for. `reached` checks a running daemon."""

    name: str
    reached: Callable[[StatusView], bool]
    may_be_down: bool = False
    """Keep waiting while no daemon runs."""
    wants_down: bool = False
    """Reached if no daemon runs."""


def _is_idle(status: StatusView) -> bool:
    """No slot has a run; a slot that waits for work has none."""
    return all(slot.state in _NO_TRAINING and slot.run_id is None for slot in status.slots)


def _is_settled(status: StatusView) -> bool:
    return len(status.slots) == status.desired_slots and not any(
        slot.draining for slot in status.slots
    )


IDLE = Goal("idle", _is_idle)
DRAINED = Goal("drained", lambda status: status.state is NodeState.DRAINED)
RUNNING = Goal("running", lambda status: status.state is NodeState.RUNNING, may_be_down=True)
GONE = Goal("gone", lambda _status: False, wants_down=True)
SETTLED = Goal("settled", _is_settled)
_NAMED = {goal.name: goal for goal in (IDLE, DRAINED, RUNNING, GONE)}
_COUNTED = re.compile(r"(slots|running)=(\d{1,6})", re.ASCII)


def _goal(text: str) -> Goal | None:
    """The goal that `text` names, None for an unknown one."""
    match = _COUNTED.fullmatch(text)
    if match is None:
        return _NAMED.get(text)
    count = int(match[2])
    if match[1] == "slots":
        return Goal(text, lambda status: _is_settled(status) and len(status.slots) == count)
    return Goal(
        text,
        lambda status: sum(slot.state is SlotState.RUNNING for slot in status.slots) == count,
    )


class DaemonProcess:
    """The daemon's process, to distinguish its end from the end of its socket."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._fd: int | None = None

    def __enter__(self) -> Self:
        # No pidfd (an old kernel, another PID namespace): then only the socket is checked.
        with contextlib.suppress(OSError, ControlError):
            pid = self._client.peer_pid()
            self._fd = os.pidfd_open(pid) if pid > 0 else None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd is not None:
            os.close(self._fd)

    @property
    def has_ended(self) -> bool:
        """True if the process is gone or was never seen."""
        if self._fd is None:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))


def wait_for(
    client: Client, goal: Goal, timeout_seconds: float, process: DaemonProcess | None = None
) -> None:
    """Return when `goal` is reached. Raises ControlError on time-out or if no daemon runs."""
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while not _is_reached(client, goal, process, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise ControlError(
                f"not {goal.name} within {show_duration(timeout_seconds)}; check "
                "coordinatorctl status, or raise --timeout",
                ExitCode.TIMED_OUT,
            )
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)


def _is_reached(client: Client, goal: Goal, process: DaemonProcess | None, deadline: float) -> bool:
    """Check once. A temporary failure counts as not reached."""
    left = deadline - time.monotonic()
    try:
        status = read_status(client, min(_POLL_SECONDS, max(left, 0.5)))
    except ConnectionLostError:
        return False
    except ControlError as error:
        if error.exit_code != ExitCode.NOT_RUNNING:
            raise
        if goal.wants_down:
            return process is None or process.has_ended
        if goal.may_be_down:
            return False
        raise
    return goal.reached(status)


def read_status(client: Client, timeout_seconds: float = _POLL_SECONDS) -> StatusView:
    """The daemon's status. Raises ControlError."""
    return convert(client.ask(GetStatus(), timeout_seconds).data, StatusView)


def convert(data: Any, kind: type[View]) -> View:
    """`data` of an answer as `kind`. Raises ControlError if this version cannot read it."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ControlError(
            f"cannot read the daemon's answer ({error}); use the coordinatorctl installed with the "
            "daemon, or --json",
            ExitCode.FAILED,
        ) from error


@click.command(
    "wait",
    context_settings=CONTEXT,
    epilog=examples("wait --for running --timeout 1m", "wait --for slots=4", "wait --for gone"),
)
@click.option(
    "--for",
    "goal_name",
    required=True,
    metavar="STATE",
    help="idle (no slot has a run), drained, running (the node takes work), gone (no daemon), "
    "slots=N (the pool has N slots, none leaving), running=N (N trainings run).",
)
@timeout_option()
@shared
@pass_settings
def wait_command(settings: Settings, goal_name: str, timeout_seconds: float) -> None:
    """Wait until the daemon is in STATE; exit code 4 if it takes too long.

    `running` also waits for a daemon that is not started yet.
    """
    goal = _goal(goal_name)
    if goal is None:
        raise click.BadParameter(
            f"{goal_name!r} is not one of {', '.join(_NAMED)}, slots=N, running=N.",
            param_hint="--for",
        )
    client = settings.client()
    with DaemonProcess(client) as process:
        wait_for(client, goal, timeout_seconds, process)
    settings.print_done(goal.name)
