"""The plan of the pool: examples of what it decides, and what holds for every world."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.model import DownMode, SlotState
from coordinator.core.reconcile import (
    Action,
    AddSlot,
    Desired,
    DismissAgents,
    KeepSlot,
    Observed,
    RetireSlot,
    SlotSeen,
    StartAgents,
    plan,
)

SEVERITY = [None, DownMode.DRAIN, DownMode.PREEMPT, DownMode.KILL]
WITHOUT_RUN = {SlotState.IDLE, SlotState.CLAIMING}
MOST_ROUNDS = 10


def slots(*states: SlotState) -> tuple[SlotSeen, ...]:
    return tuple(SlotSeen(number, state) for number, state in enumerate(states))


def running(count: int) -> tuple[SlotSeen, ...]:
    return slots(*[SlotState.RUNNING] * count)


def seen(*present: SlotSeen, ready: int = 0) -> Observed:
    return Observed(tuple(present), ready_agents=ready, proven=True)


def carried_out(world: Observed, actions: list[Action]) -> Observed:
    """The world after the pool has done what the plan said, and nothing else has happened."""
    present = {slot.number: slot for slot in world.slots}
    for action in actions:
        match action:
            case AddSlot(number):
                assert number not in present, "a number that is in use"
                present[number] = SlotSeen(number, SlotState.IDLE)
            case RetireSlot(number, mode):
                present[number] = replace(present[number], retiring=mode)
            case KeepSlot(number):
                present[number] = replace(present[number], retiring=None)
            case StartAgents(count):
                world = replace(
                    world,
                    ready_agents=world.ready_agents + count,
                    starting_agents=world.starting_agents + count,
                )
            case DismissAgents(keep):
                world = replace(
                    world,
                    ready_agents=keep,
                    starting_agents=min(world.starting_agents, keep),
                )
    return replace(world, slots=tuple(present.values()))


def settled(desired: Desired, world: Observed) -> Observed:
    """Plan and carry out until there is nothing to do; agents that were started come up."""
    for _ in range(MOST_ROUNDS):
        actions = plan(desired, world)
        if not actions and not (world.starting_agents and not world.proven):
            return world
        world = carried_out(world, actions)
        if not world.proven and world.starting_agents:
            world = replace(world, proven=True, starting_agents=0)
    raise AssertionError(f"not settled after {MOST_ROUNDS} rounds: {plan(desired, world)}")


worlds = st.builds(
    Observed,
    slots=st.lists(
        st.builds(
            SlotSeen,
            number=st.integers(0, 12),
            state=st.sampled_from(SlotState),
            retiring=st.sampled_from(SEVERITY),
        ),
        max_size=10,
        unique_by=lambda slot: slot.number,
    ).map(tuple),
    ready_agents=st.integers(0, 12),
    proven=st.booleans(),
    may_start=st.booleans(),
).flatmap(
    lambda world: st.builds(
        replace, st.just(world), starting_agents=st.integers(0, world.ready_agents)
    )
)
wishes = st.builds(
    Desired,
    slots=st.integers(0, 12),
    down=st.sampled_from(DownMode),
    start_agents=st.booleans(),
    warm_agents=st.none() | st.integers(0, 4),
    keep_idle_agents=st.booleans(),
)


# --- examples: slots ------------------------------------------------------------------------------
def test_an_empty_node_gets_its_slots_by_number() -> None:
    actions = plan(Desired(3, warm_agents=0), seen())
    assert actions == [AddSlot(0), AddSlot(1), AddSlot(2)]


def test_a_gap_in_the_numbers_is_filled_before_new_numbers_are_used() -> None:
    world = seen(SlotSeen(0, SlotState.RUNNING), SlotSeen(2, SlotState.RUNNING))
    assert plan(Desired(4, warm_agents=0), world) == [AddSlot(1), AddSlot(3)]


def test_the_number_of_a_slot_that_is_leaving_is_not_given_again_yet() -> None:
    leaving = SlotSeen(1, SlotState.STOPPING, retiring=DownMode.PREEMPT)
    world = seen(SlotSeen(0, SlotState.RUNNING), leaving)
    assert plan(Desired(2, warm_agents=0), world) == [AddSlot(2)]


def test_scaling_up_keeps_a_draining_slot_before_it_adds_another() -> None:
    leaving = SlotSeen(1, SlotState.RUNNING, retiring=DownMode.DRAIN)
    world = seen(SlotSeen(0, SlotState.RUNNING), leaving)
    assert plan(Desired(3, warm_agents=0), world) == [KeepSlot(1), AddSlot(2)]


@pytest.mark.parametrize("mode", [DownMode.PREEMPT, DownMode.KILL])
def test_a_slot_whose_training_was_signalled_is_not_kept(mode: DownMode) -> None:
    world = seen(SlotSeen(0, SlotState.STOPPING, retiring=mode))
    assert plan(Desired(1, warm_agents=0), world) == [AddSlot(1)]


@pytest.mark.parametrize("mode", DownMode)
def test_surplus_slots_are_removed_as_requested(mode: DownMode) -> None:
    assert plan(Desired(1, mode, warm_agents=0), seen(*running(2))) == [RetireSlot(1, mode)]


def test_lowering_takes_idle_slots_first_then_claiming_then_the_highest_number() -> None:
    world = seen(*slots(SlotState.CLAIMING, SlotState.RUNNING, SlotState.IDLE, SlotState.STARTING))
    for wanted, expected in {3: [2], 2: [2, 0], 1: [2, 0, 3], 0: [2, 0, 3, 1]}.items():
        actions = plan(Desired(wanted, warm_agents=0, keep_idle_agents=False), world)
        assert actions == [RetireSlot(number, DownMode.DRAIN) for number in expected]


def test_a_harder_mode_overtakes_a_draining_slot_and_a_softer_one_does_not() -> None:
    draining = seen(SlotSeen(0, SlotState.RUNNING, retiring=DownMode.DRAIN))
    killed = seen(SlotSeen(0, SlotState.RUNNING, retiring=DownMode.KILL))
    assert plan(Desired(0, DownMode.KILL, warm_agents=0), draining) == [
        RetireSlot(0, DownMode.KILL)
    ]
    assert plan(Desired(0, DownMode.PREEMPT, warm_agents=0), killed) == []


# --- examples: agents -----------------------------------------------------------------------------
def test_agents_are_kept_for_every_waiting_slot_and_the_warm_ones_beyond() -> None:
    world = seen(*slots(SlotState.IDLE, SlotState.CLAIMING, SlotState.RUNNING), ready=1)
    assert plan(Desired(3, warm_agents=2), world) == [StartAgents(3)]


def test_before_the_first_agent_has_worked_one_is_tried_at_a_time() -> None:
    world = replace(seen(*slots(*[SlotState.IDLE] * 4)), proven=False)
    assert plan(Desired(4, warm_agents=3), world) == [StartAgents(1)]
    starting = replace(world, ready_agents=1, starting_agents=1)
    assert plan(Desired(4, warm_agents=3), starting) == []


def test_where_agents_are_cheap_one_is_kept_for_each_slot_that_may_soon_be_free() -> None:
    world = replace(seen(*running(3), ready=0), proven=True)
    assert plan(Desired(3, warm_agents=None), world) == [StartAgents(3)]
    assert plan(Desired(3, warm_agents=None), replace(world, ready_agents=3)) == []
    idle = replace(seen(SlotSeen(0, SlotState.IDLE)), proven=True)
    assert plan(Desired(1, warm_agents=None), idle) == [StartAgents(2)], "and a spare one"


def test_a_node_without_slots_keeps_no_warm_agent() -> None:
    assert plan(Desired(0, warm_agents=4), seen(ready=2)) == [DismissAgents(0)]
    assert plan(Desired(0, warm_agents=4), seen()) == []


def test_agents_beyond_need_are_dismissed_also_while_nothing_is_claimed() -> None:
    world = seen(*running(2), ready=3)
    assert plan(Desired(2, warm_agents=1, start_agents=False), world) == [DismissAgents(1)]


def test_no_agent_is_started_while_a_failed_start_is_waited_out_or_nothing_is_claimed() -> None:
    world = seen(*slots(SlotState.IDLE))
    assert plan(Desired(1), replace(world, may_start=False)) == []
    assert plan(Desired(1, start_agents=False), world) == []


def test_a_node_that_will_claim_no_more_dismisses_every_idle_agent() -> None:
    world = seen(*running(1), ready=2)
    assert plan(Desired(1, keep_idle_agents=False), world) == [DismissAgents(0)]


def test_a_retiring_slot_needs_no_agent() -> None:
    world = seen(SlotSeen(0, SlotState.IDLE, retiring=DownMode.DRAIN))
    assert plan(Desired(0, warm_agents=0), world) == []


# --- what holds for every world -------------------------------------------------------------------
@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_carrying_the_plan_out_ends_in_the_world_that_was_wanted(
    desired: Desired, world: Observed
) -> None:
    world = settled(desired, world)
    staying = [slot for slot in world.slots if slot.retiring is None]
    assert len(staying) == desired.slots
    waiting = [slot for slot in staying if slot.state in WITHOUT_RUN]
    busy = len(staying) - len(waiting)
    warm = max(busy, 1) if desired.warm_agents is None else desired.warm_agents
    wanted = len(waiting) + (warm if world.slots or desired.slots else 0)
    if not desired.keep_idle_agents:
        wanted = 0
    assert world.ready_agents <= wanted
    if desired.start_agents and world.may_start:
        assert world.ready_agents == wanted


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_a_settled_world_is_left_alone_however_often_one_looks(
    desired: Desired, world: Observed
) -> None:
    world = settled(desired, world)
    assert plan(desired, world) == []


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_the_plan_does_not_depend_on_the_order_in_which_slots_are_seen(
    desired: Desired, world: Observed
) -> None:
    turned = replace(world, slots=world.slots[::-1])
    ours, theirs = settled(desired, world), settled(desired, turned)
    # Which of several draining slots is kept may differ; how many stay and wait may not.
    assert ours.ready_agents == theirs.ready_agents or any(s.retiring for s in world.slots)
    assert sum(s.retiring is None for s in ours.slots) == desired.slots
    assert sum(s.retiring is None for s in theirs.slots) == desired.slots


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_scaling_up_or_to_the_same_number_touches_no_slot_that_stays(
    desired: Desired, world: Observed
) -> None:
    staying = {slot.number for slot in world.slots if slot.retiring is None}
    desired = replace(desired, slots=max(desired.slots, len(staying)))
    touched = {a.number for a in plan(desired, world) if isinstance(a, AddSlot | RetireSlot)}
    assert not touched & staying


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_lowering_never_takes_a_run_while_a_slot_without_one_stays(
    desired: Desired, world: Observed
) -> None:
    staying = {slot.number: slot.state for slot in world.slots if slot.retiring is None}
    retired = {a.number for a in plan(desired, world) if isinstance(a, RetireSlot)} & set(staying)
    assert len(retired) == max(0, len(staying) - desired.slots)
    if any(staying[number] not in WITHOUT_RUN for number in retired):
        kept = set(staying) - retired
        assert all(staying[number] not in WITHOUT_RUN for number in kept)


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_a_retirement_only_ever_becomes_harder(desired: Desired, world: Observed) -> None:
    before = {slot.number: slot.retiring for slot in world.slots}
    for action in plan(desired, world):
        if isinstance(action, RetireSlot):
            assert SEVERITY.index(action.mode) > SEVERITY.index(before[action.number])


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_every_draining_slot_is_kept_before_one_is_added(desired: Desired, world: Observed) -> None:
    actions = plan(desired, world)
    kept = [index for index, action in enumerate(actions) if isinstance(action, KeepSlot)]
    added = [index for index, action in enumerate(actions) if isinstance(action, AddSlot)]
    assert not (kept and added) or max(kept) < min(added)
    if added:
        draining = sum(slot.retiring is DownMode.DRAIN for slot in world.slots)
        assert len(kept) == draining


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_never_two_agents_are_starting_before_one_has_worked(
    desired: Desired, world: Observed
) -> None:
    world = replace(world, proven=False, ready_agents=0, starting_agents=0)
    for _ in range(MOST_ROUNDS):
        world = carried_out(world, plan(desired, world))
        assert world.starting_agents <= 1


@settings(deadline=None, max_examples=60)
@given(wishes, worlds)
def test_agents_are_never_started_and_dismissed_in_one_plan(
    desired: Desired, world: Observed
) -> None:
    actions = [a for a in plan(desired, world) if isinstance(a, StartAgents | DismissAgents)]
    assert len(actions) <= 1
    for action in actions:
        match action:
            case StartAgents(count):
                assert count > 0
            case DismissAgents(keep):
                assert 0 <= keep < world.ready_agents
