"""Circuit breakers of slots, nodes and the sweep: one table-driven state machine, three scopes.

Owns what counts as a failure, when a breaker opens and how it closes again. It must never read a
clock. `wandb agent` itself stops after a few failures in a row, but not with `--count 1`: a bad
machine then burns run after run (issue 5088 of wandb), so we need our own guard.

    CLOSED -- as many failures in a row as the rules allow --> OPEN
    OPEN -- the cool-down is over --> HALF_OPEN: one probe claim is let through
    HALF_OPEN -- the probe is sound --> CLOSED
    HALF_OPEN -- the probe fails --> OPEN, with twice the cool-down
    any -- an operator --> CLOSED

Sweeps whose hyperparameters are often bad must not stop. So a failure counts only if the training
never reached `wandb.init` or ended within seconds of its start; a later failure proves that the
node can train.
"""

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from coordinator.core.model import CommandKind, Outcome


class BreakerState(enum.StrEnum):
    """Whether claims pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Scope(enum.StrEnum):
    """What a breaker guards."""

    SLOT = "slot"
    NODE = "node"
    SWEEP = "sweep"


class Verdict(enum.StrEnum):
    """What one ending says about the place where the run was trained."""

    SOUND = "sound"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    """It was ended by someone: that says nothing."""


class Sign(enum.StrEnum):
    """The events of a breaker."""

    SOUND = "sound"
    FAILURE = "failure"
    NEUTRAL = "neutral"
    PROBE = "probe"
    """A claim asks to be the probe."""
    TIME = "time"
    """Time has passed."""
    RESET = "reset"
    """An operator resets it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a breaker opens, and for how long."""

    failures: int
    """Failures in a row."""
    cooldown_seconds: float
    max_cooldown_seconds: float
    probe_seconds: float
    """A probe without news for this long is given up: its node may have died."""
    per_label: int = 0
    """Maximum failures counted per label; 0: all. So one bad node does not stop the sweep."""


class Breaker(msgspec.Struct, frozen=True):
    """One breaker; times are seconds on the caller's clock. Crosses Redis as JSON."""

    state: BreakerState = BreakerState.CLOSED
    streak: tuple[str, ...] = ()
    """Labels of the failures in a row: run IDs, or node names for a sweep."""
    trips: int = 0
    """How often it has opened since it was last closed."""
    retry_at: float = 0.0
    prober: str = ""
    """Owner of the probe; "": none."""
    probe_until: float = 0.0
    reason: str = ""
    """Why it last opened."""

    def awaits(self, who: str) -> bool:
        """True if a sound ending of `who` would change anything."""
        if self.state is BreakerState.CLOSED:
            return bool(self.streak)
        return self.state is BreakerState.HALF_OPEN and self.prober == who != ""

    def admits(self, who: str, now: float) -> bool:
        """True if `who` may claim, or continue the claim that is the probe."""
        if self.state is BreakerState.HALF_OPEN:
            return self.prober in {"", who} or now >= self.probe_until
        return self.state is BreakerState.CLOSED


@dataclass(frozen=True, slots=True)
class Step:
    """One event: its source, its label in the streak, and its reason."""

    sign: Sign
    who: str = ""
    label: str = ""
    reason: str = ""


Move = Callable[[Breaker, Step, float, Rules], Breaker]


def _stay(breaker: Breaker, _step: Step, _now: float, _rules: Rules) -> Breaker:
    return breaker


def _count(breaker: Breaker, step: Step, now: float, rules: Rules) -> Breaker:
    # Keep no more than the rules can need.
    streak = (*breaker.streak, step.label)[-4 * rules.failures :]
    grown = msgspec.structs.replace(breaker, streak=streak)
    return _open(grown, step, now, rules) if _weight(streak, rules) >= rules.failures else grown


def _weight(streak: tuple[str, ...], rules: Rules) -> int:
    if not rules.per_label:
        return len(streak)
    return sum(min(count, rules.per_label) for count in Counter(streak).values())


def _open(breaker: Breaker, step: Step, now: float, rules: Rules) -> Breaker:
    cooldown = cooldown_seconds(breaker.trips, rules)
    return Breaker(
        BreakerState.OPEN, breaker.streak, breaker.trips + 1, now + cooldown, reason=step.reason
    )


def _forget(breaker: Breaker, _step: Step, _now: float, _rules: Rules) -> Breaker:
    return msgspec.structs.replace(breaker, streak=()) if breaker.streak else breaker


def _close(_breaker: Breaker, _step: Step, _now: float, _rules: Rules) -> Breaker:
    return Breaker()


def _try_again(breaker: Breaker, _step: Step, now: float, _rules: Rules) -> Breaker:
    if now < breaker.retry_at:
        return breaker
    return msgspec.structs.replace(breaker, state=BreakerState.HALF_OPEN)


def _let_through(breaker: Breaker, step: Step, now: float, rules: Rules) -> Breaker:
    if breaker.prober == step.who or not breaker.admits(step.who, now):
        return breaker
    until = now + rules.probe_seconds
    return msgspec.structs.replace(breaker, prober=step.who, probe_until=until)


def _of_the_probe(move: Move) -> Move:
    """Only the probe decides; other endings belong to trainings started before."""

    def moved(breaker: Breaker, step: Step, now: float, rules: Rules) -> Breaker:
        return move(breaker, step, now, rules) if step.who == breaker.prober else breaker

    return moved


def _give_up_probe(breaker: Breaker, _step: Step, _now: float, _rules: Rules) -> Breaker:
    return msgspec.structs.replace(breaker, prober="", probe_until=0.0)


TABLE: Mapping[tuple[BreakerState, Sign], Move] = {
    (BreakerState.CLOSED, Sign.FAILURE): _count,
    (BreakerState.CLOSED, Sign.SOUND): _forget,
    (BreakerState.CLOSED, Sign.NEUTRAL): _stay,
    (BreakerState.CLOSED, Sign.PROBE): _stay,
    (BreakerState.CLOSED, Sign.TIME): _stay,
    (BreakerState.CLOSED, Sign.RESET): _close,
    (BreakerState.OPEN, Sign.FAILURE): _stay,
    (BreakerState.OPEN, Sign.SOUND): _stay,
    (BreakerState.OPEN, Sign.NEUTRAL): _stay,
    (BreakerState.OPEN, Sign.PROBE): _stay,
    (BreakerState.OPEN, Sign.TIME): _try_again,
    (BreakerState.OPEN, Sign.RESET): _close,
    (BreakerState.HALF_OPEN, Sign.FAILURE): _of_the_probe(_open),
    (BreakerState.HALF_OPEN, Sign.SOUND): _of_the_probe(_close),
    (BreakerState.HALF_OPEN, Sign.NEUTRAL): _of_the_probe(_give_up_probe),
    (BreakerState.HALF_OPEN, Sign.PROBE): _let_through,
    (BreakerState.HALF_OPEN, Sign.TIME): _stay,
    (BreakerState.HALF_OPEN, Sign.RESET): _close,
}


def step(breaker: Breaker, what: Step, now: float, rules: Rules) -> Breaker:
    """The breaker after one event."""
    return TABLE[breaker.state, what.sign](breaker, what, now, rules)


def cooldown_seconds(trips: int, rules: Rules) -> float:
    """How long a breaker stays open that opened `trips` times before without closing."""
    return min(rules.cooldown_seconds * 2.0 ** min(trips, 32), rules.max_cooldown_seconds)


class BreakerView(msgspec.Struct, frozen=True):
    """A breaker that is not closed."""

    scope: str
    """slot, node or sweep."""
    slot: int | None
    """Its number, for a slot's."""
    state: str
    """open, or half_open: one probe claim is allowed."""
    failures: int
    """In a row, as counted when it opened."""
    reason: str
    """Reason of the last failure."""
    retry_in_seconds: int
    """Time until a probe claim is allowed; 0: one may be in progress."""


# --- what an ending says --------------------------------------------------------------------------
BY_ITSELF = frozenset({Outcome.FAILED, Outcome.CRASHED, Outcome.OOM, Outcome.LOST_CLAIM,
                       Outcome.PREEMPTED})  # fmt: skip
"""Endings that can be the fault of the place or the run; the last one marked itself."""
NOT_INITIALISED = frozenset({None, "PENDING"})
"""States that the server shows for a run that never called `wandb.init`."""


@dataclass(frozen=True, slots=True)
class Life:
    """How one training ended, as far as breakers need to know."""

    outcome: Outcome
    lived_seconds: float | None
    """None if its start was not seen."""
    asked: bool
    """The server answered the request for the run."""
    server_state: str | None
    ordered: bool
    """We, a person or another holder ended it."""

    @property
    def before_init(self) -> bool:
        """It ended before `wandb.init`."""
        return self.asked and self.server_state in NOT_INITIALISED


def verdict(life: Life, early_seconds: float) -> tuple[Verdict, str]:
    """What an ending says about its slot and node, with the reason."""
    if life.outcome in {Outcome.FINISHED, Outcome.PREEMPT_LOST}:
        return Verdict.SOUND, "finished"
    if life.ordered or life.outcome not in BY_ITSELF:
        return Verdict.NEUTRAL, "was ended"
    if life.outcome is Outcome.LOST_CLAIM:
        return Verdict.FAILURE, "never began"
    if life.outcome is not Outcome.PREEMPTED and life.before_init:
        return Verdict.FAILURE, "ended before wandb.init"
    if life.lived_seconds is not None and life.lived_seconds < early_seconds:
        return Verdict.FAILURE, f"ended within {early_seconds:g} s"
    return Verdict.SOUND, "ended later"


def strikes_run(life: Life, kind: CommandKind, found: Verdict) -> Verdict:
    """What an ending says about a resumed *run*: FAILURE, SOUND (it is over), NEUTRAL.

    A run that marks itself preempted and exits after some training is not a failure.
    """
    if life.outcome in {Outcome.FINISHED, Outcome.PREEMPT_LOST}:
        return Verdict.SOUND
    if kind is not CommandKind.RESUME or life.ordered or life.outcome not in BY_ITSELF:
        return Verdict.NEUTRAL
    if life.outcome is Outcome.PREEMPTED and found is not Verdict.FAILURE:
        return Verdict.SOUND
    return Verdict.FAILURE


def is_to_blame(run_id: str, node: Breaker) -> bool:
    """True if a failure is the run's own fault: not on a node where others fail in the same way."""
    return node.state is BreakerState.CLOSED and set(node.streak) <= {run_id}
