"""The plan of the pool: from the desired and the actual state to actions.

One pure function. It is level-triggered: for the same state it returns the same actions, and for a
state in which its actions have been executed it returns none.
"""

from dataclasses import dataclass

from coordinator.core.model import DownMode, SlotState

SPARE_AGENTS = 1
"""Kept for a slot whose agent dies. An executed one costs 2 s of CPU and 95 MB."""


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state: what users and notices requested."""

    slots: int
    down: DownMode = DownMode.DRAIN
    """How surplus slots give up their runs."""
    start_agents: bool = True
    """False while paused, draining, stopping, or when the sweep is over."""
    warm_agents: int | None = SPARE_AGENTS
    """Agents beyond those of waiting slots; None: one for each slot with a run, and a spare one if
    there is none."""
    keep_idle_agents: bool = True
    """False if no claim will follow: idle agents are dismissed."""


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """One slot that exists."""

    number: int
    state: SlotState
    retiring: DownMode | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """The actual state."""

    slots: tuple[SlotSeen, ...]
    ready_agents: int = 0
    """Agents without a run: starting, waiting or reserved."""
    starting_agents: int = 0
    """Those among them that have not registered yet."""
    proven: bool = False
    """An agent has registered since the daemon started; before that, only one is tried."""
    may_start: bool = True
    """False during the pause after a failed agent start."""


@dataclass(frozen=True, slots=True)
class AddSlot:
    """Create slot `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class RetireSlot:
    """Remove slot `number` in the given `mode`."""

    number: int
    mode: DownMode


@dataclass(frozen=True, slots=True)
class KeepSlot:
    """Keep slot `number`, which was being removed."""

    number: int


@dataclass(frozen=True, slots=True)
class StartAgents:
    """Start `count` more agents."""

    count: int


@dataclass(frozen=True, slots=True)
class DismissAgents:
    """End idle agents until `keep` are left."""

    keep: int


Action = AddSlot | RetireSlot | KeepSlot | StartAgents | DismissAgents

_SEVERITY = {None: 0, DownMode.DRAIN: 1, DownMode.PREEMPT: 2, DownMode.KILL: 3}
READY_FOR_WORK = frozenset({SlotState.IDLE, SlotState.CLAIMING})
"""States of a slot without a run."""
_EASE_OF_LOSS = {SlotState.IDLE: 0, SlotState.CLAIMING: 1}
"""Slots without a run go first; among the others the highest number."""


def plan(desired: Desired, seen: Observed) -> list[Action]:
    """The actions that bring `seen` closer to `desired`, slots before agents."""
    return [*_plan_slots(desired, seen), *_plan_agents(desired, seen)]


def _plan_slots(desired: Desired, seen: Observed) -> list[Action]:
    staying = [slot for slot in seen.slots if slot.retiring is None]
    leaving = [slot for slot in seen.slots if slot.retiring is not None]
    missing = desired.slots - len(staying)
    if missing > 0:
        # A slot that only drains can be kept; one that was signalled cannot.
        back = [slot for slot in leaving if slot.retiring is DownMode.DRAIN][:missing]
        taken = {slot.number for slot in seen.slots}
        fresh = [number for number in range(desired.slots + len(leaving)) if number not in taken]
        added = [AddSlot(number) for number in fresh[: missing - len(back)]]
        return [*(KeepSlot(slot.number) for slot in back), *added]
    surplus = sorted(staying, key=lambda s: (_EASE_OF_LOSS.get(s.state, 2), -s.number))[:-missing]
    retire = [RetireSlot(slot.number, desired.down) for slot in surplus if missing < 0]
    harder = [
        RetireSlot(slot.number, desired.down)
        for slot in leaving
        if _SEVERITY[desired.down] > _SEVERITY[slot.retiring]
    ]
    return [*retire, *harder]


def _plan_agents(desired: Desired, seen: Observed) -> list[Action]:
    if not desired.keep_idle_agents:
        return [DismissAgents(0)] if seen.ready_agents else []
    staying = [s for s in seen.slots if s.retiring is None]
    waiting = [s for s in staying if s.state in READY_FOR_WORK]
    busy = len(staying) - len(waiting)
    warm = max(busy, SPARE_AGENTS) if desired.warm_agents is None else desired.warm_agents
    serving = seen.slots or desired.slots
    wanted = len(waiting) + (warm if serving else 0)
    if seen.ready_agents > wanted:
        return [DismissAgents(wanted)]
    short = wanted - seen.ready_agents
    if not desired.start_agents or not seen.may_start or short <= 0:
        return []
    if not seen.proven:
        return [StartAgents(1)] if seen.starting_agents == 0 else []
    return [StartAgents(short)]
