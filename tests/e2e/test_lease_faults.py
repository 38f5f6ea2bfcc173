"""What a whole daemon does when Redis, its own process or a pid plays it false.

Real daemons, agents and trainings on a real Redis, each case behind a fault proxy of its own. The
cases mostly wait, so they are all begun at once, each in a thread; a test is given the end of its
own.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from coordinator.leases.scripts import Scripts
from coordinator.supervisor.stays import start_time
from tests.e2e.lease_faults import (
    STOP_BUDGET,
    TTL,
    Ended,
    Kept,
    Paused,
    Reused,
    Scene,
    Waited,
    down,
    ended,
    journalled,
    kept,
    paused,
    reused,
    shut,
)
from tests.support.emulator import start_emulator
from tests.support.node import overlaps
from tests.support.redis import redis_server

Played = dict[Callable[[Scene], Any], Future[Any]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """Every case, begun."""
    folder = tmp_path_factory.mktemp("faults")
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        server = stack.enter_context(portal.wrap_async_context_manager(redis_server(folder)))
        emulator = start_emulator(folder / "emulator")
        stack.callback(emulator.stop)
        scene = Scene(folder, emulator, portal, server.socket, stack)
        cases = (kept, ended, paused, reused, shut, down)
        with ThreadPoolExecutor(len(cases)) as threads:
            yield {case: threads.submit(case, scene) for case in cases}


def test_redis_away_for_ten_ttls_stops_no_training_and_everything_finishes(
    played: Played,
) -> None:
    case: Kept = played[kept].result()
    assert case.alive
    assert [record["pid"] for record in case.node.records("signal")] == [
        *(case.pids - {case.stays_pid})
    ], "only the test has signalled"
    assert case.exit_code == 0
    assert [view["outcome"] for view in case.node.history()] == ["finished"] * 3
    assert {view["pid"] for view in case.node.history()} > case.pids
    assert case.node.events("tree_killed") == []
    assert overlaps(case.node.records()) == []


def test_redis_away_for_ten_ttls_is_shown_as_degraded_and_in_events(played: Played) -> None:
    case: Kept = played[kept].result()
    assert case.status_code == 5
    assert case.status["redis"]["state"] == "degraded"
    assert case.status["redis"]["detail"]
    assert case.node.events("redis_unreachable")[0]["level"] == "warning"
    assert {e["run_id"] for e in case.node.events("lease_expired_locally")} <= {
        view["run_id"] for view in case.node.history()
    }
    assert case.node.events("lease_expired_locally")
    away = case.node.events("redis_recovered")[-1]["away_seconds"]
    assert away >= 10 * TTL
    assert case.node.events("lease_renewed_late")


def test_sigterm_in_a_black_hole_ends_within_the_stop_budget_and_5_s(played: Played) -> None:
    case: Ended = played[ended].result()
    assert case.code == 75
    assert STOP_BUDGET <= case.seconds < STOP_BUDGET + 5
    assert case.left == {}


def test_what_a_black_hole_left_unsaid_is_settled_at_the_next_start(played: Played) -> None:
    case: Ended = played[ended].result()
    assert case.journal == 1
    assert case.next_code == 0
    assert journalled(case.node) == 0
    first, *_ = case.node.events("lease_released")
    assert (first["status"], first["outcome"]) == ("released", "preempted")
    outcomes = [view["outcome"] for view in case.node.history()]
    assert outcomes == ["interrupted", "finished"], "W&B would not have run it again"


@pytest.mark.parametrize("how", [shut, down])
def test_redis_down_at_start_is_waited_for_and_sigterm_ends_the_wait_in_5_s(
    played: Played, how: Callable[[Scene], Waited]
) -> None:
    case: Waited = played[how].result()
    assert "check that Redis runs" in case.said[0]["advice"]
    assert case.shown["redis"]["state"] == "degraded"
    assert case.node.events("run_claimed") == []
    assert case.code == 75
    assert case.seconds < 5
    assert not case.node.processes()


def test_a_daemon_that_was_stopped_too_long_renews_first_and_kills_the_copy_it_lost(
    played: Played,
) -> None:
    case: Paused = played[paused].result()
    assert Scripts()._hashes["renew_many"].encode() in case.first_request
    (view,) = case.node.history()
    assert (view["outcome"], view["signal"]) == ("fenced", "SIGKILL")
    assert len(case.killed) == 2
    kept_as_it_was = ("state", "owner", "fence", "attempts", "outcomes")
    assert [case.lease_after[key] for key in kept_as_it_was] == [
        case.lease_before[key] for key in kept_as_it_was
    ]
    assert case.lease_after["owner"] == "taker"


def test_a_fenced_copy_leaves_no_mark_on_the_server(played: Played) -> None:
    case: Paused = played[paused].result()
    (view,) = case.taker.history()
    assert view["outcome"] == "finished"
    states = case.node.emulator.events("run_state", run=case.run_id)
    ends = [event["cause"] for event in states if event["cause"] == "silence" or
            event["cause"].startswith("exit code")]  # fmt: skip
    assert ends == ["silence", "exit code 0"]


def test_a_training_whose_pid_was_reused_is_not_adopted_and_the_stranger_is_left_alone(
    played: Played,
) -> None:
    case: Reused = played[reused].result()
    assert case.node.events("run_adopted") == []
    assert {pid: start_time(pid) for pid in case.strangers} == case.strangers
    (view,) = case.node.history()
    assert (view["run_id"], view["outcome"]) == (case.run_id, "crashed")
    assert (case.lease["state"], case.lease["last_outcome"]) == ("released", "crashed")
