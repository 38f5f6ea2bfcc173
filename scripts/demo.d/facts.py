"""What the play came to, counted from what was written down.

Owns the facts of the final table. The training processes' own records decide who trained what and
when, never the word of a daemon. Says nothing about good or bad: that is `verdict`.
"""

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from observed import Line, Observed, Stay, monotonic_of
from play import STEPS, Story

AGENT_READY_SECONDS = 5.1
"""An agent pauses 5 s between its registration and its first question for work."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the final table shows; durations in seconds."""

    runs: int
    finished: int
    unfinished: dict[str, str]
    """Run ID to the server's state, for the runs that have not finished."""
    preempted: int
    resumed: int
    resumed_elsewhere: int
    """Preempted runs that the other node went on with."""
    duplicates: int
    dropped: int
    overlaps: list[tuple[str, float]]
    trained_again: int
    """Training processes beyond one for each run and one for each preempted or rescued one."""
    orphans: list[str]
    killed: str
    """Run ID."""
    killed_step: int
    killed_state: str
    killed_outcome: str
    gaps: list[float]
    """From the end of a run's last process to the start of the next training on its slot."""
    claims: list[float]
    """The part of each gap until work was fetched and its lease ours; the rest is the agent's."""
    cold_starts: int
    """Hand-overs for which no agent was ready or the server had no work yet."""
    steps_lost: int
    broken_histories: list[str]
    """Finished runs that do not have each step exactly once on the server.

    What wandb had not sent yet when its process was killed is missing from the killed run: that is
    `killed_steps_unsent`, and the only thing that may be missing.
    """
    killed_steps_unsent: int
    preempt_seconds: float
    exit_codes: dict[str, list[int | None]]
    seconds: float


@dataclass(frozen=True, slots=True)
class HandOver:
    """A slot that went from one run to the next; `warm`: an agent was ready and there was work."""

    gap_seconds: float
    claim_seconds: float
    warm: bool


def gather(story: Story, observed: Observed, server_runs: dict[str, Any]) -> Facts:
    """All facts; `server_runs` are the runs as the server shows them at the end."""
    states = {run: str(view["state"]) for run, view in server_runs.items()}
    preempted = [
        e for n in "ab" for e in observed.events(n, "run_ended") if e["outcome"] == "preempted"
    ]
    resumed = resumptions(observed.stays)
    moved = [b.run for b, after in resumed if b.node != after.node]
    changes = hand_overs(observed)
    warm = [change for change in changes if change.warm]
    killed = story.killed
    expected = len(states) + len(preempted) + (killed is not None)
    return Facts(
        runs=story.runs,
        finished=sum(state == "finished" for state in states.values()),
        unfinished={run: state for run, state in states.items() if state != "finished"},
        preempted=len(preempted),
        resumed=len(resumed),
        resumed_elsewhere=sum(run in story.preempted for run in moved),
        duplicates=observed.duplicates,
        dropped=sum(len(observed.events(node, "claim_dropped")) for node in "ab"),
        overlaps=overlaps(observed.stays),
        trained_again=max(0, len(observed.stays) - expected),
        orphans=story.left,
        killed=killed.run if killed else "",
        killed_step=killed.step if killed else 0,
        killed_state=states.get(killed.run, "") if killed else "",
        killed_outcome=_outcome(killed, observed) if killed else "",
        gaps=[change.gap_seconds for change in warm],
        claims=[change.claim_seconds for change in warm],
        cold_starts=len(changes) - len(warm),
        steps_lost=sum(max(0, before.step - after.first_step) for before, after in resumed),
        broken_histories=[run for run in states if states[run] == "finished" and not is_whole(
            server_runs[run]["history"], may_lack=killed is not None and run == killed.run)],
        killed_steps_unsent=STEPS - len(server_runs[killed.run]["history"]) if killed else 0,
        preempt_seconds=story.preempt_seconds,
        exit_codes=story.exit_codes,
        seconds=story.seconds,
    )  # fmt: skip


def _outcome(stay: Stay, observed: Observed) -> str:
    """The coordinator's word for a run's first stay on its node."""
    ended = observed.events(stay.node, "run_ended")
    return next((str(event["outcome"]) for event in ended if event["run_id"] == stay.run), "")


def resumptions(stays: list[Stay]) -> list[tuple[Stay, Stay]]:
    """Pairs of a stay and the next one of the same run."""
    before: dict[str, Stay] = {}
    pairs = []
    for stay in stays:
        if stay.run in before:
            pairs.append((before[stay.run], stay))
        before[stay.run] = stay
    return pairs


def overlaps(stays: list[Stay]) -> list[tuple[str, float]]:
    """Runs that two processes trained at the same time, with the seconds that they shared.

    A process without a last word counts as ended at its latest step.
    """
    found = []
    for one, other in combinations(stays, 2):
        shared = min(one.last, other.last) - max(one.began, other.began)
        if one.run == other.run and shared > 0:
            found.append((one.run, round(shared, 2)))
    return found


def is_whole(rows: list[Line], *, may_lack: bool) -> bool:
    """Each step was logged in its order and none twice; `may_lack`: some are not there."""
    steps = [int(row["_step"]) for row in rows]
    in_order = all(step < following for step, following in pairwise(steps))
    return in_order and (may_lack or steps == list(range(STEPS)))


class _Slots:
    """Follows the events of one daemon after the other on a node."""

    def __init__(self, queued: dict[str, float]) -> None:
        self.found: list[HandOver] = []
        self._queued = queued
        self._free: dict[int, float] = {}
        self._leased: dict[int, float] = {}
        self._ready: list[float] = []

    def take(self, event: Line) -> None:
        """One event; others than these say nothing about gaps."""
        at = monotonic_of(event["ts"])
        match event["event"]:
            case "daemon_started":
                self._free, self._ready = {}, []
            case "agent_registered":
                self._ready.append(at + AGENT_READY_SECONDS)
            case "tree_gone":
                self._free[event["slot"]] = at
            case "lease_acquired":
                self._leased[event["slot"]] = at
            case "run_started":
                self._started(event, at)
            case _:
                pass

    def _started(self, event: Line, at: float) -> None:
        ready = self._ready.pop(0) if self._ready else float("inf")
        free = self._free.pop(event["slot"], None)
        if free is None:  # the first run of a slot follows none
            return
        warm = ready <= free and self._queued.get(event["run_id"], 0.0) <= free
        leased = self._leased.get(event["slot"], free)
        self.found.append(HandOver(round(at - free, 3), round(leased - free, 3), warm))


def hand_overs(observed: Observed) -> list[HandOver]:
    """Every change from one run to the next on a slot."""
    queued = {e["run"]: float(e["t"]) for e in observed.server_events("run_queued")}
    found = []
    for node in "ab":
        slots = _Slots(queued)
        for event in observed.events(node):
            slots.take(event)
        found += slots.found
    return found
