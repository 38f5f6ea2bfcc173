"""The book of runs: what each training process has reported, and how long ago.

Owns all runs and every change of a run's state. It must never decide who gets a run: whoever has to
know that a run has ended (the sweep's queue) is told through `on_end`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordinator.emulator import lifecycle
from coordinator.emulator.records import Now, Run, RunKey, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from coordinator.emulator.history import History


@dataclass(frozen=True, slots=True)
class Limits:
    """When silence ends a run, when a claim lapses, and how long an open connection stands for
    life.

    All in seconds. A client only speaks every 30 s; with a `crash_seconds` below that, an open
    connection of the run's client counts as a sign of life, for at most `connection_seconds`.
    """

    crash_seconds: float = 300.0
    reserve_seconds: float = 3600.0
    connection_seconds: float = 300.0


@dataclass(slots=True)
class RunBook:
    """Every run that the server knows, of all projects."""

    limits: Limits
    history: History
    on_end: Callable[[Run, Now], None] = lambda _run, _now: None
    runs: dict[RunKey, Run] = field(default_factory=dict)

    def initialise(self, key: RunKey, now: Now) -> tuple[Run, bool]:
        """A training process starts (or goes on with) a run; also says whether the run is new."""
        run = self.runs.get(key) or Run(*key, created=now)
        self.runs[key] = run
        inserted = not run.visible
        run.inits += 1
        if run.state is not RunState.RUNNING:
            run.preempting = False
        run.heard_at = now.monotonic
        self.history.record(
            now,
            "run_initialised",
            run=run.run_id,
            was=run.state.value,
            inits=run.inits,
            agent=run.agent_id,
        )
        self.change(run, RunState.RUNNING, "init", now)
        return run, inserted

    def post(self, run: Run, post: lifecycle.Post, now: Now) -> None:
        """Take in one `file_stream` post of a run."""
        run.heard_at, run.posted = now.monotonic, now
        lifecycle.take_in(run, post)
        if post.preempting and not run.preempting:
            run.preempting = True
            self.history.record(now, "run_marked_preempting", run=run.run_id)
        if post.complete:
            run.exit_code = post.exitcode or 0
            state = lifecycle.state_after_exit(run, run.exit_code)
            self._end(run, state, f"exit code {run.exit_code}", now)
        elif run.state is not RunState.RUNNING:
            # The real server lets any later post bring a run back to life.
            self.change(run, RunState.RUNNING, "posted after its end", now)

    def request_stop(self, run: Run, now: Now) -> None:
        """A person stops a run: its agent gets `stop`, its SDK is told at its next post."""
        run.stop_requested = True
        self.history.record(now, "run_stop_requested", run=run.run_id)

    def fall_silent(self, run: Run, now: Now) -> None:
        """End a run as if nothing had been heard of it for too long."""
        self._end(run, lifecycle.state_after_silence(run), "silence", now)

    def expire(self, peers: Collection[str], now: Now) -> list[Run]:
        """End the runs that fell silent; return the claims that were not used in time.

        `peers` are the connections that are open at present.
        """
        overdue: list[Run] = []
        for run in list(self.runs.values()):
            if run.state is RunState.RUNNING:
                if not run.peers.isdisjoint(peers) and self._counts_as_life(run, now):
                    run.heard_at = now.monotonic
                elif now.monotonic - run.heard_at > self.limits.crash_seconds:
                    self.fall_silent(run, now)
            elif run.state is RunState.RESERVED and self._is_overdue(run, now):
                overdue.append(run)
        return overdue

    def change(self, run: Run, state: RunState, cause: str, now: Now) -> None:
        """Set a run's state and record why."""
        before, run.state, run.changed_at = run.state, state, now.monotonic
        if state is RunState.RUNNING:
            run.exit_code = None
        self.history.record(
            now,
            "run_state",
            run=run.run_id,
            state=state.value,
            was=before.value,
            cause=cause,
            exit_code=run.exit_code,
            preempting=run.preempting,
        )

    def _end(self, run: Run, state: RunState, cause: str, now: Now) -> None:
        self.change(run, state, cause, now)
        self.on_end(run, now)

    def _is_overdue(self, run: Run, now: Now) -> bool:
        return now.monotonic - run.changed_at > self.limits.reserve_seconds

    def _counts_as_life(self, run: Run, now: Now) -> bool:
        spoke = run.posted.monotonic if run.posted is not None else run.changed_at
        return now.monotonic - spoke < self.limits.connection_seconds
