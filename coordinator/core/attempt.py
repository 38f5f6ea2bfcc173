"""One attempt at a run on this node, from the lease in hand to the end of its process tree.

Owns what is decided in that time: which signal goes where and how often, when the grace ends, what
counts as told to end. Everything is a value: `step` takes the attempt, an event and the time, and
answers with the next attempt and the actions that the caller has to carry out.

    HELD -- Begin --> STARTING
    HELD -- Resumed --> STARTING | RUNNING | CLOSING
    STARTING -- Started --> RUNNING
    STARTING -- StartFailed --> GONE
    STARTING | RUNNING -- Exited --> CLOSING
    HELD | STARTING | RUNNING -- Believed | Vanished --> CLOSING
    STARTING | RUNNING | CLOSING -- TreeGone --> GONE
    HELD | STARTING | RUNNING | CLOSING -- Swept --> GONE

All other events leave the phase as it is. An event that the phase does not allow is an error of
ours (`IllegalEventError`), which tells the attempt's whole story.

Three promises hold in every sequence of events: a graceful signal is sent at most once; a deadline
only ever comes nearer; the phase never goes back.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from coordinator.core.attempt_events import (
    Action,
    AskWorkers,
    Begin,
    Believed,
    CannotKill,
    DeadlineReached,
    Event,
    Fence,
    Hurry,
    KillEverything,
    LookForOom,
    MarkClosing,
    OutOfMemory,
    Preempt,
    Resumed,
    Signal,
    Stopped,
    Swept,
    Tell,
    Vanished,
)
from coordinator.core.outcome import Ending
from coordinator.core.shim_protocol import (
    Exited,
    Hello,
    KillTree,
    SendSignal,
    ShimTold,
    SignalSent,
    Started,
    StartFailed,
    TreeGone,
)
from coordinator.core.signals import NUMBERS

STORY_LENGTH = 50
"""Events that an attempt remembers for `IllegalEventError`."""


class Phase(enum.StrEnum):
    """How far the attempt has come; a later one is greater in `order`."""

    HELD = "held"
    """Lease and shim are there; the word to start was not given."""
    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"
    """The main process has ended; processes of its tree may be left."""
    GONE = "gone"
    """No process of it is left."""

    @property
    def order(self) -> int:
        """From the first to the last."""
        return list(Phase).index(self)


Result = tuple["Attempt", list[Action]]


class IllegalEventError(Exception):
    """The phase does not allow this event: a fault of ours."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Where one attempt stands. Times are seconds on the caller's monotonic clock."""

    by_workers: bool = False
    """A launcher stands in between: its workers are asked to save, not the main process."""
    phase: Phase = Phase.HELD
    pid: int | None = None
    """Of the main process; 0 for one that nobody saw."""
    status: int | None = None
    """Its raw wait status, once it has ended."""
    error: str = ""
    """Why it could not be started."""
    started_at: float | None = None
    exited_at: float | None = None
    preempted: bool = False
    killed: bool = False
    """Its main process lived when we ended it with SIGKILL."""
    fenced: bool = False
    oom: bool = False
    stopped: bool = False
    stuck: tuple[int, ...] = ()
    """Processes that do not die of SIGKILL."""
    kill_at: float | None = None
    owed: tuple[ShimTold, ...] = ()
    """What the shim is to be told after the word to start."""
    story: tuple[str, ...] = ()

    @property
    def exited(self) -> bool:
        """The main process has ended."""
        return self.status is not None

    @property
    def stopping(self) -> bool:
        """Told to end, and the grace runs."""
        return self.kill_at is not None and not self.exited

    @property
    def told_to_end(self) -> bool:
        """By us, or because another has the run."""
        return self.preempted or self.killed or self.fenced

    def lived_seconds(self, now: float) -> float | None:
        """How long the main process has lived, or did; None when its start was not seen."""
        if self.started_at is None:
            return None if self.pid is not None or not self.error else 0.0
        return (now if self.exited_at is None else self.exited_at) - self.started_at

    def ending(self, server_state: str | None, *, cancelled: bool) -> Ending:
        """All that decides the outcome."""
        code, signum = exit_of(self.status)
        return Ending(
            exit_code=code,
            signal=signum,
            started=self.pid is not None or bool(self.error),
            preempted=self.preempted,
            killed=self.killed,
            fenced=self.fenced,
            oom=self.oom,
            cancelled=cancelled,
            server_state=server_state,
        )


def exit_of(status: int | None) -> tuple[int | None, int | None]:
    """Exit code or signal of a raw wait status; source: WEXITSTATUS, WTERMSIG of wait(2)."""
    if status is None:
        return None, None
    signum = status & 0x7F
    return (None, signum) if signum else (status >> 8 & 0xFF, None)


# --- what each event does -------------------------------------------------------------------------
def _begin(attempt: Attempt, event: Begin, _now: float) -> Result:
    return replace(attempt, phase=Phase.STARTING, owed=()), [Tell(event.go), *_owed(attempt)]


def _owed(attempt: Attempt) -> list[Action]:
    closing: list[Action] = [MarkClosing()] if attempt.preempted else []
    return [*map(Tell, attempt.owed), *closing]


def _resumed(attempt: Attempt, event: Resumed, now: float) -> Result:
    hello = event.hello
    phase = Phase.STARTING if hello.child_pid is None else Phase.RUNNING
    phase = phase if hello.status is None else Phase.CLOSING
    actions = _owed(attempt)
    attempt = replace(attempt, phase=phase, pid=hello.child_pid, status=hello.status, owed=())
    attempt = _was_told(attempt, hello.told_to_end)
    if attempt.told_to_end and not attempt.exited:
        attempt = _hurry(attempt, Hurry(0.0 if attempt.killed else event.grace_seconds), now)[0]
    return attempt, actions


def _preempt(attempt: Attempt, event: Preempt, now: float) -> Result:
    hurried, _ = _hurry(attempt, Hurry(event.grace_seconds), now)
    if attempt.preempted or attempt.exited or attempt.phase is Phase.GONE:
        return hurried, []
    asked = SendSignal(event.signum, once=True, preempt=True)
    asking: list[Action] = []
    if attempt.by_workers and attempt.phase is Phase.RUNNING and attempt.pid:
        asked = SendSignal(0, preempt=True)
        asking = [AskWorkers(attempt.pid, event.signum)]
    messages: list[ShimTold] = [asked]
    if attempt.stopped:  # or it would never see the signal
        messages.append(SendSignal(NUMBERS["SIGCONT"], once=True))
    hurried = replace(hurried, preempted=True)
    if attempt.phase is Phase.HELD:
        return replace(hurried, owed=(*attempt.owed, *messages)), []
    return hurried, [MarkClosing(), *map(Tell, messages), *asking]


def _signal(attempt: Attempt, event: Signal, _now: float) -> Result:
    message = SendSignal(event.signum, event.once)
    if attempt.phase is Phase.HELD:
        return replace(attempt, owed=(*attempt.owed, message)), []
    return attempt, [] if attempt.phase is Phase.GONE else [Tell(message)]


def _hurry(attempt: Attempt, event: Hurry, now: float) -> Result:
    at = now + event.seconds
    return replace(attempt, kill_at=at if attempt.kill_at is None else min(at, attempt.kill_at)), []


def _fence(attempt: Attempt, _event: Fence, now: float) -> Result:
    return replace(_hurry(attempt, Hurry(0.0), now)[0], fenced=True), []


def _deadline(attempt: Attempt, _event: DeadlineReached, _now: float) -> Result:
    return replace(attempt, killed=not attempt.exited), [Tell(KillTree()), KillEverything()]


def _started(attempt: Attempt, event: Started, now: float) -> Result:
    if attempt.phase is not Phase.STARTING:  # a shim that came back says it once more
        return attempt, []
    return replace(attempt, phase=Phase.RUNNING, pid=event.pid, started_at=now), []


def _start_failed(attempt: Attempt, event: StartFailed, _now: float) -> Result:
    status = event.exit_code << 8
    return replace(attempt, phase=Phase.GONE, error=event.error, status=status), []


def _exited(attempt: Attempt, event: Exited, now: float) -> Result:
    if attempt.exited:  # the same
        return attempt, []
    ended = replace(attempt, phase=Phase.CLOSING, status=event.status, exited_at=now)
    return ended, [MarkClosing(), LookForOom()]


def _believed(attempt: Attempt, event: Believed, _now: float) -> Result:
    phase = Phase.CLOSING if attempt.phase.order < Phase.CLOSING.order else attempt.phase
    believed = replace(attempt, phase=phase, pid=event.pid, status=event.status)
    return _was_told(believed, event.told_to_end), [LookForOom()]


def _was_told(attempt: Attempt, to_end: str) -> Attempt:
    return replace(attempt, preempted=attempt.preempted or to_end == "preempt",
                   killed=attempt.killed or to_end == "kill")  # fmt: skip


def _tree_gone(attempt: Attempt, _event: TreeGone, _now: float) -> Result:
    return replace(attempt, phase=Phase.GONE), []


def _vanished(attempt: Attempt, _event: Vanished, _now: float) -> Result:
    return replace(attempt, phase=Phase.CLOSING, pid=attempt.pid or 0), []


def _swept(attempt: Attempt, _event: Swept, _now: float) -> Result:
    return replace(attempt, phase=Phase.GONE, stuck=()), []


def _cannot_kill(attempt: Attempt, event: CannotKill, _now: float) -> Result:
    return replace(attempt, stuck=event.pids), []


def _out_of_memory(attempt: Attempt, _event: OutOfMemory, _now: float) -> Result:
    return replace(attempt, oom=True), []


def _stopped(attempt: Attempt, event: Stopped, _now: float) -> Result:
    return replace(attempt, stopped=event.stopped), []


def _noted(attempt: Attempt, _event: object, _now: float) -> Result:
    return attempt, []


Handler = Callable[[Attempt, Any, float], Result]
_BEFORE_THE_END = (Phase.HELD, Phase.STARTING, Phase.RUNNING, Phase.CLOSING)
_WITH_A_SHIM = (Phase.STARTING, Phase.RUNNING, Phase.CLOSING)
TABLE: dict[type, tuple[tuple[Phase, ...], Handler]] = {
    Begin: ((Phase.HELD,), _begin),
    Resumed: ((Phase.HELD,), _resumed),
    Preempt: (tuple(Phase), _preempt),
    Signal: (tuple(Phase), _signal),
    Hurry: (tuple(Phase), _hurry),
    Fence: (tuple(Phase), _fence),
    DeadlineReached: (_WITH_A_SHIM, _deadline),
    Believed: (tuple(Phase), _believed),
    Vanished: (_BEFORE_THE_END, _vanished),
    Swept: (tuple(Phase), _swept),
    CannotKill: (_BEFORE_THE_END, _cannot_kill),
    OutOfMemory: (tuple(Phase), _out_of_memory),
    Stopped: (tuple(Phase), _stopped),
    Started: (_WITH_A_SHIM, _started),
    StartFailed: ((Phase.STARTING,), _start_failed),
    Exited: (_WITH_A_SHIM, _exited),
    TreeGone: (_WITH_A_SHIM, _tree_gone),
    SignalSent: (_WITH_A_SHIM, _noted),
    Hello: (tuple(Phase), _noted),
}
"""For each event: the phases that allow it, and what it does."""


def step(attempt: Attempt, event: Event, now: float) -> Result:
    """The attempt after `event`, and what is to be done. Raises IllegalEventError."""
    allowed, handler = TABLE[type(event)]
    if attempt.phase not in allowed:
        before = ", ".join(attempt.story)
        raise IllegalEventError(f"{event} in phase {attempt.phase}; before: {before}")
    after, actions = handler(attempt, event, now)
    story = (*attempt.story, f"{type(event).__name__} ({attempt.phase})")
    return replace(after, story=story[-STORY_LENGTH:]), actions
