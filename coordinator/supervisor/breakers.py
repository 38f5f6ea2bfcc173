"""The breakers of this node: one a slot, one for the node, and its view of the sweep's.

Owns what is done with the rules of `core.breaker`: who may claim, what endings are reported, which
runs are quarantined. It must never touch a training.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from time import monotonic

import anyio
import structlog

from coordinator.core import breaker as rules_of
from coordinator.core.breaker import (
    Breaker,
    BreakerState,
    BreakerView,
    Life,
    Rules,
    Scope,
    Sign,
    Step,
    Verdict,
)
from coordinator.core.model import CommandKind
from coordinator.errors import CoordinatorError
from coordinator.leases import Shared, SharedBreaker

log = structlog.get_logger()

LOOK_SECONDS = 5.0
SWAP_TRIES = 5


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """`[breaker]` of the configuration."""

    enabled: bool
    slot: Rules
    node: Rules
    sweep: Rules
    run_failures: int
    early_seconds: float
    sound_seconds: float
    """A training that has lived for so long shows that its place is sound."""


@dataclass(frozen=True, slots=True)
class Stayed:
    """One ended training, as far as breakers care."""

    run_id: str
    slot: int
    kind: CommandKind
    life: Life


class Breakers:
    """See the module."""

    def __init__(
        self,
        settings: BreakerSettings,
        node: str,
        shared: Shared | None,
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._name = node
        self._shared = shared
        self._changed = changed
        self.node = Breaker()
        self.slots: dict[int, Breaker] = {}
        self._sweep = SharedBreaker(Breaker(), "0", 0.0)
        self._sweep_seen_at = 0.0
        self._sweep_probe: int | None = None
        """The slot whose claim is the probe of the whole sweep."""
        self._judged_later: set[int] = set()
        """Slots whose training has ended and whose verdict is awaited."""

    # --- claims ---------------------------------------------------------------------------------
    def admits(self, slot: int) -> bool:
        """Whether this slot may claim, or go on claiming."""
        if not self._settings.enabled:
            return True
        mine = self.slots.get(slot, Breaker())
        tripped = any(b.state is not BreakerState.CLOSED for b in (mine, self.node, self.sweep))
        if tripped and slot in self._judged_later:
            return False
        now, who = monotonic(), str(slot)
        local = mine.admits(who, now) and self.node.admits(who, now)
        return local and self._sweep_admits(slot)

    async def enter(self, slot: int) -> bool:
        """Begin a claim; False when it may not. It may be the probe of a half-open breaker."""
        if not self.admits(slot):
            return False
        if self._settings.enabled and self.sweep.state is BreakerState.HALF_OPEN:
            self._sweep_probe = slot
            await self._share(Step(Sign.PROBE, self._name))
            if self.sweep.prober != self._name:
                self._sweep_probe = None
        if not self.admits(slot):  # somebody was quicker
            return False
        self._step(slot, Step(Sign.PROBE, str(slot)))
        return True

    async def leave(self, slot: int, *, trained: bool) -> None:
        """A claim is over; with a training its verdict follows in `ended`."""
        if trained:
            self._judged_later.add(slot)
            return
        await self._conclude(slot, Step(Sign.NEUTRAL, str(slot)))

    # --- what happens ---------------------------------------------------------------------------
    async def ended(self, stayed: Stayed, *, excused: bool) -> None:
        """A training has ended; `excused`: for a reason that is neither the run's nor ours."""
        self._judged_later.discard(stayed.slot)
        if not self._settings.enabled:
            return
        found, words = rules_of.verdict(stayed.life, self._settings.early_seconds)
        if excused:
            found, words = Verdict.NEUTRAL, "excused"
        await self._strike(stayed, Verdict.NEUTRAL if excused else found)
        reason = f"run {stayed.run_id} {words}"
        sign = Step(Sign(found.value), str(stayed.slot), stayed.run_id, reason)
        await self._conclude(stayed.slot, sign)

    async def start_failed(self, slot: int, run_id: str) -> None:
        """No agent could start a run."""
        if self._settings.enabled:
            reason = f"no agent started run {run_id}"
            await self._conclude(slot, Step(Sign.FAILURE, str(slot), run_id, reason))

    def agent_failed(self, words: str) -> None:
        """An agent has ended before it had a run, by no fault of W&B."""
        if self._settings.enabled:
            who = self.node.prober  # while a probe is awaited, it cannot succeed
            reason = f"an agent ended early: {words}"
            self._set(None, Step(Sign.FAILURE, who, "agent", reason))

    def reset(self) -> int:
        """An operator says that all is well; how many breakers of this node that closes."""
        mine = [*self.slots.values(), self.node]
        for slot in (None, *self.slots):
            self._set(slot, Step(Sign.RESET))
        return sum(breaker.state is not BreakerState.CLOSED for breaker in mine)

    async def reset_sweep(self) -> bool:
        """The same for the sweep; True when that closes its breaker."""
        return await self._share(Step(Sign.RESET)) is BreakerState.CLOSED

    async def pardon(self, run_id: str) -> bool:
        """Take a run out of quarantine; False when it was not there. Raises PeerError."""
        pardoned = self._shared is not None and await self._shared.pardon(run_id)
        if pardoned:
            log.info("run_pardoned", run_id=run_id)
        return pardoned

    async def run(self, living: Callable[[], Iterable[tuple[int, float | None]]]) -> None:
        """Until cancelled. `living`: slots with a training and how long it has lived."""
        looked_at = 0.0
        while self._settings.enabled:
            for slot in (None, *self.slots):
                self._set(slot, Step(Sign.TIME))
            for slot, lived in living():
                if lived is not None and lived >= self._settings.sound_seconds:
                    await self._lives(slot)
            if monotonic() - looked_at >= LOOK_SECONDS:
                looked_at = monotonic()
                await self._share(Step(Sign.TIME))
            await anyio.sleep(1.0)

    async def _lives(self, slot: int) -> None:
        """A training has lived long enough to tell something, if anybody wants to know."""
        who = str(slot)
        asking = [self.sweep.awaits(""), self.node.awaits(who), self._sweep_probe == slot,
                  self.slots.get(slot, Breaker()).awaits(who)]  # fmt: skip
        if any(asking):
            await self._conclude(slot, Step(Sign.SOUND, who))

    # --- the machines ---------------------------------------------------------------------------
    async def _conclude(self, slot: int, step: Step) -> None:
        self._step(slot, step)
        if self._sweep_probe == slot:
            self._sweep_probe = None
        elif self.sweep.state is BreakerState.HALF_OPEN or step.sign is Sign.NEUTRAL:
            return
        await self._share(Step(step.sign, self._name, self._name, step.reason))

    def _step(self, slot: int, step: Step) -> None:
        self._set(None, step)
        self._set(slot, step)

    def _set(self, slot: int | None, step: Step) -> None:
        """One sign to the breaker of a slot, or of the node."""
        before = self.node if slot is None else self.slots.get(slot, Breaker())
        rules = self._settings.node if slot is None else self._settings.slot
        after = rules_of.step(before, step, monotonic(), rules)
        if slot is None:
            self.node = after
        else:
            self.slots[slot] = after = self._contrasted(before, after)
        if after != before:
            self._announce(Scope.NODE if slot is None else Scope.SLOT, slot, before, after)

    def _contrasted(self, before: Breaker, after: Breaker) -> Breaker:
        """A slot is bad only where others are sound: else it is the whole node's matter."""
        opened = before.state is BreakerState.CLOSED and after.state is BreakerState.OPEN
        others_fail = len(self.node.streak) >= len(after.streak)
        if opened and (others_fail or self.node.state is not BreakerState.CLOSED):
            return before
        return after

    def _announce(self, scope: Scope, slot: int | None, before: Breaker, after: Breaker) -> None:
        if after.state is before.state:
            return
        match after.state:
            case BreakerState.OPEN:
                rules = {Scope.SLOT: self._settings.slot, Scope.NODE: self._settings.node,
                         Scope.SWEEP: self._settings.sweep}[scope]  # fmt: skip
                cooldown = rules_of.cooldown_seconds(before.trips, rules)
                log.error("breaker_opened", scope=scope, slot=slot, reason=after.reason,
                          failures=len(after.streak), cooldown_seconds=cooldown)  # fmt: skip
            case BreakerState.HALF_OPEN:
                log.info("breaker_half_open", scope=scope, slot=slot)
            case BreakerState.CLOSED:
                log.info("breaker_closed", scope=scope, slot=slot)
        self._changed()

    # --- the sweep ------------------------------------------------------------------------------
    @property
    def sweep(self) -> Breaker:
        """The sweep's breaker as it was last seen."""
        return self._sweep.breaker

    def _sweep_admits(self, slot: int) -> bool:
        if self._sweep_probe is not None:
            return self._sweep_probe == slot
        now = self._sweep.now_seconds + monotonic() - self._sweep_seen_at
        return self.sweep.admits("", now)

    async def _share(self, step: Step) -> BreakerState | None:
        """One sign to the sweep's breaker; its state if that has changed.

        Without Redis the sign is lost, and nothing is claimed.
        """
        if self._shared is None:
            return None
        try:
            for _ in range(SWAP_TRIES):
                seen = await self._shared.breaker()
                after = self._moved(seen, step)
                if after == seen.breaker:
                    self._saw(seen)
                    break
                swapped, now = await self._shared.swap(seen, after)
                if swapped:
                    self._announce(Scope.SWEEP, None, seen.breaker, after)
                    self._saw(now)
                    return None if after.state is seen.breaker.state else after.state
        except CoordinatorError as error:
            log.debug("breaker_not_shared", problem=str(error))
        return None

    def _moved(self, seen: SharedBreaker, step: Step) -> Breaker:
        rules = self._settings.sweep
        timed = rules_of.step(seen.breaker, Step(Sign.TIME), seen.now_seconds, rules)
        return rules_of.step(timed, step, seen.now_seconds, rules)

    def _saw(self, seen: SharedBreaker) -> None:
        changed = seen.breaker.state is not self.sweep.state
        self._sweep, self._sweep_seen_at = seen, monotonic()
        if changed:
            self._changed()

    async def _strike(self, stayed: Stayed, found: Verdict) -> None:
        """Note how a resumed run has ended, if that is its own doing."""
        if self._shared is None or stayed.kind is not CommandKind.RESUME:
            return
        its = rules_of.strikes_run(stayed.life, stayed.kind, found)
        try:
            if its is Verdict.SOUND:
                await self._shared.clear_strikes(stayed.run_id)
            elif its is Verdict.FAILURE and rules_of.is_to_blame(stayed.run_id, self.node):
                most = self._settings.run_failures
                why = f"it failed {most} times in a row after it was resumed"
                if await self._shared.strike(stayed.run_id, most, why):
                    log.error("run_quarantined", run_id=stayed.run_id, slot=stayed.slot, reason=why)
        except CoordinatorError as error:
            log.debug("breaker_not_shared", problem=str(error))

    # --- for people -----------------------------------------------------------------------------
    def views(self) -> list[BreakerView]:
        """Those that are not closed."""
        now = monotonic()
        sweep_now = self._sweep.now_seconds + now - self._sweep_seen_at
        named = [(Scope.SWEEP, None, self.sweep, sweep_now), (Scope.NODE, None, self.node, now)]
        slots = [(Scope.SLOT, n, b, now) for n, b in sorted(self.slots.items())]
        return [
            _view(scope, slot, breaker, at)
            for scope, slot, breaker, at in [*named, *slots]
            if breaker.state is not BreakerState.CLOSED
        ]


def _view(scope: Scope, slot: int | None, breaker: Breaker, now: float) -> BreakerView:
    return BreakerView(
        scope=scope.value,
        slot=slot,
        state=breaker.state.value,
        failures=len(breaker.streak),
        reason=breaker.reason,
        retry_in_seconds=max(0, ceil(breaker.retry_at - now)),
    )
