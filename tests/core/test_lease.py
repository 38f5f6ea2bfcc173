"""The decisions about leases: timings, conflicts, the holder's state machine, health."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.lease import (
    RENEWABLE,
    TABLE,
    Conflict,
    Drop,
    DropReason,
    HolderEvent,
    HolderState,
    LeaseSettings,
    Wait,
    judge_health,
    settle,
    silence,
    step,
)
from coordinator.errors import ConfigError

S = LeaseSettings()
OLD = Conflict("node-b", 7, age_seconds=500.0, silent_seconds=5.0, claimable_in_seconds=85.0)


# --- settings -------------------------------------------------------------------------------------
def test_the_defaults_are_those_of_the_documentation() -> None:
    assert (S.ttl_seconds, S.renew_seconds, S.grace_seconds) == (60.0, 10.0, 30.0)
    assert (S.handoff_seconds, S.race_window_seconds, S.timeout_seconds) == (30.0, 30.0, 2.0)
    assert (S.on_lease_loss, S.stop_budget_seconds) == ("continue", 10.0)
    assert S.settle_seconds == 90.0


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("ttl_seconds", {"ttl_seconds": 0.0}),
        ("ttl_seconds", {"ttl_seconds": 33.9}),
        ("ttl_seconds", {"renew_seconds": 18.7}),
        ("renew_seconds", {"renew_seconds": 0.0}),
        ("timeout_seconds", {"timeout_seconds": -1.0}),
        ("grace_seconds", {"grace_seconds": 9.9}),
        ("grace_seconds", {"grace_seconds": -1.0}),
        ("handoff_seconds", {"handoff_seconds": -0.1}),
        ("race_window_seconds", {"race_window_seconds": -0.1}),
        (
            "ttl_seconds",
            {
                "on_lease_loss": "strict",
                "ttl_seconds": 34.0,
                "grace_seconds": 25.0,
                "stop_budget_seconds": 25.0,
            },
        ),
    ],
)
def test_timings_that_cannot_work_are_refused_by_the_name_of_their_key(
    key: str, changes: dict[str, object]
) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(S, **changes)  # type: ignore[arg-type]
    assert caught.value.where.startswith(f"[redis] {key} = ")


def test_the_smallest_timings_that_work_are_accepted() -> None:
    replace(S, ttl_seconds=34.0, grace_seconds=10.0, handoff_seconds=0.0, race_window_seconds=0.0)
    replace(S, on_lease_loss="strict", ttl_seconds=34.0, stop_budget_seconds=20.0)


# --- a conflict -----------------------------------------------------------------------------------
def test_a_young_lease_is_a_race_and_an_old_one_a_hand_off() -> None:
    young = replace(OLD, age_seconds=29.999)
    assert settle(young, 0.0, S) == Drop(DropReason.RACE)
    assert settle(replace(OLD, age_seconds=30.0), 0.0, S) == Wait(30.0)


def test_a_lease_that_became_old_while_we_waited_for_another_is_still_judged_by_its_own_age() -> (
    None
):
    assert settle(replace(OLD, age_seconds=1.0), 12.0, S) == Drop(DropReason.RACE)


def test_the_wait_for_a_living_holder_ends_with_the_hand_off_time() -> None:
    assert settle(OLD, 29.0, S) == Wait(1.0)
    assert settle(OLD, 30.0, S) == Drop(DropReason.HANDOFF_TIMEOUT)


def test_a_silent_holder_is_waited_for_until_its_lease_can_be_claimed() -> None:
    silent = replace(OLD, silent_seconds=40.0, claimable_in_seconds=50.0)
    assert settle(silent, 0.0, S) == Wait(50.0)
    assert settle(silent, 300.0, S) == Wait(50.0)
    assert settle(replace(silent, age_seconds=40.0), 0.0, S) == Wait(50.0)
    assert settle(replace(silent, age_seconds=24.1), 0.0, S) == Wait(50.0), "dead, so no race"


def test_a_holder_that_missed_one_renewal_is_not_yet_silent() -> None:
    assert settle(replace(OLD, silent_seconds=20.0), 31.0, S) == Drop(DropReason.HANDOFF_TIMEOUT)


def test_a_freed_lease_is_waited_for_however_young() -> None:
    freed = replace(OLD, age_seconds=1.0, claimable_in_seconds=12.0, freed=True)
    assert settle(freed, 100.0, S) == Wait(12.0)


@given(
    age=st.floats(0, 1e9),
    silent=st.floats(0, 1e9),
    claimable=st.floats(-10, 90),
    waited=st.floats(0, 1e6),
    freed=st.booleans(),
)
def test_a_wait_is_never_negative_nor_longer_than_the_lease_can_stand(
    age: float, silent: float, claimable: float, waited: float, freed: bool
) -> None:
    decision = settle(Conflict("b", 1, age, silent, claimable, freed), waited, S)
    if isinstance(decision, Wait):
        assert 0.0 <= decision.seconds <= max(claimable, 0.0)


# --- the holder -----------------------------------------------------------------------------------
def test_the_table_answers_every_event_in_every_state() -> None:
    pairs = itertools.product(HolderState, HolderEvent)
    assert all(step(state, event) in HolderState for state, event in pairs)
    assert set(TABLE) == set(HolderState)


def test_only_the_knowledge_of_another_owner_loses_a_lease() -> None:
    for state, event in itertools.product(HolderState, HolderEvent):
        if state is not HolderState.LOST and step(state, event) is HolderState.LOST:
            assert event is HolderEvent.TAKEN


def test_whatever_redis_does_not_say_a_renewal_brings_the_lease_back() -> None:
    state = HolderState.HELD
    for event in (HolderEvent.MISSED, HolderEvent.TTL_PASSED, HolderEvent.MISSED):
        state = step(state, event)
    assert state is HolderState.EXPIRED_LOCAL
    assert step(state, HolderEvent.RENEWED) is HolderState.HELD


@pytest.mark.parametrize("state", [HolderState.FREED, HolderState.SURRENDERED, HolderState.LOST])
def test_a_stop_that_was_asked_for_is_not_taken_back(state: HolderState) -> None:
    for event in set(HolderEvent) - {HolderEvent.TAKEN, HolderEvent.RELEASED}:
        assert step(state, event) is state


def test_a_released_lease_stays_released_and_is_not_renewed() -> None:
    assert {step(HolderState.RELEASED, event) for event in HolderEvent} == {HolderState.RELEASED}
    assert {HolderState.RELEASED, HolderState.LOST} == set(HolderState) - RENEWABLE


def test_silence_counts_from_the_sending_of_the_last_good_renewal() -> None:
    assert silence(159.9, 100.0, S) is HolderEvent.MISSED
    assert silence(160.0, 100.0, S) is HolderEvent.TTL_PASSED


def test_strict_mode_stops_so_early_that_the_stop_fits_before_the_end() -> None:
    strict = replace(S, on_lease_loss="strict")
    assert silence(100.0 + 50.0 - 2.0 - 0.1, 100.0, strict) is HolderEvent.MISSED
    assert silence(100.0 + 50.0 - 2.0, 100.0, strict) is HolderEvent.STOP_DUE
    assert silence(1000.0, 100.0, strict) is HolderEvent.STOP_DUE


# --- health ---------------------------------------------------------------------------------------
def test_health_is_ok_uncertain_and_lost_by_the_age_of_the_last_acknowledgement() -> None:
    assert judge_health(15.9, "", S).state == "ok"
    assert judge_health(16.1, "", S).state == "uncertain"
    assert judge_health(1.0, "no answer", S).state == "uncertain"
    assert judge_health(59.9, "no answer", S).state == "uncertain"
    assert judge_health(60.0, "no answer", S).state == "lost"
    assert judge_health(60.0, "", S).detail != ""
