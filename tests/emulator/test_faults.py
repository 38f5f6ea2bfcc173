"""Every kind of fault hits the intended request, and is in the history."""

from __future__ import annotations

import http.client
import random
import time
import urllib.error
from typing import TYPE_CHECKING

import msgspec
import pytest

from coordinator.emulator.faults import Behaviour, Change, Fault, Faults, parse_rule
from coordinator.emulator.records import Now
from tests.support.emulator import API_KEY, Emulator

if TYPE_CHECKING:
    from collections.abc import Callable

GRID = {"program": "t.py", "method": "grid", "parameters": {"lr": {"values": [0.1, 0.2]}}}
LOST_CONNECTION = (http.client.HTTPException, ConnectionError, urllib.error.URLError)


@pytest.fixture
def path(emulator: Emulator) -> str:
    """A sweep with work."""
    return emulator.create_sweep(GRID)


@pytest.fixture
def agent(emulator: Emulator, path: str) -> str:
    """An agent of that sweep."""
    return emulator.create_agent(path)


def kinds(emulator: Emulator) -> list[str]:
    """The faults that the history tells of."""
    return [event["kind"] for event in emulator.events("fault")]


def test_errors_come_as_often_as_they_were_ordered(emulator: Emulator, agent: str) -> None:
    emulator.faults({"kind": "http", "op": "Heartbeat", "status": 500, "count": 2})
    statuses = [emulator.heartbeat_reply(agent).status for _ in range(3)]
    assert statuses == [500, 500, 200]
    assert kinds(emulator) == ["http", "http"]


def test_too_many_requests_say_when_to_come_again(emulator: Emulator, agent: str) -> None:
    emulator.faults({"kind": "http", "op": "*", "status": 429, "retry_after": 7, "count": 1})
    reply = emulator.heartbeat_reply(agent)
    assert (reply.status, reply.headers["Retry-After"]) == (429, "7")


def test_unknown_agent_and_ordered_404_look_alike(emulator: Emulator, agent: str) -> None:
    emulator.faults({"kind": "http", "op": "Heartbeat", "status": 404, "count": 1})
    assert emulator.heartbeat_reply(agent).status == 404
    assert emulator.heartbeat_reply("nobody").status == 404


def test_empty_answers_claim_nothing(emulator: Emulator, agent: str) -> None:
    emulator.faults({"kind": "empty", "op": "Heartbeat", "for_seconds": 3600.0})
    assert emulator.heartbeat(agent) == []
    emulator.faults(clear=True)
    assert emulator.heartbeat(agent)[0]["type"] == "run"


def test_odd_command_is_passed_on(emulator: Emulator, agent: str) -> None:
    emulator.faults(
        {"kind": "command", "op": "Heartbeat", "command": {"type": "dance"}, "count": 1}
    )
    assert emulator.heartbeat(agent) == [{"type": "dance"}]


def test_sweep_can_pretend_not_to_run(emulator: Emulator, path: str) -> None:
    emulator.faults({"kind": "not_running", "op": "CreateAgent", "count": 1})
    with pytest.raises(TypeError):
        emulator.create_agent(path)
    assert emulator.create_agent(path)


def test_request_can_be_delayed(emulator: Emulator, agent: str) -> None:
    emulator.faults({"kind": "delay", "op": "Heartbeat", "seconds": 0.3, "count": 1})
    before = time.monotonic()
    emulator.heartbeat(agent)
    assert time.monotonic() - before >= 0.3


@pytest.mark.parametrize(("after", "claimed"), [(False, 0), (True, 1)])
def test_dropped_connection_loses_request_or_answer(
    after: bool, claimed: int, emulator: Emulator, path: str, agent: str
) -> None:
    emulator.faults({"kind": "drop", "op": "Heartbeat", "count": 1, "after": after})
    with pytest.raises(LOST_CONNECTION):
        emulator.heartbeat(agent)
    assert len(emulator.sweep(path)["runs"]) == claimed


def test_rule_for_idle_agents_spares_busy_ones(emulator: Emulator, agent: str) -> None:
    (command,) = emulator.heartbeat(agent)
    emulator.faults({"kind": "http", "op": "Heartbeat", "status": 503, "idle": True})
    assert emulator.heartbeat_reply(agent, command["run_id"]).status == 200
    assert emulator.heartbeat_reply(agent).status == 503


def test_bad_rule_is_refused_with_a_reason(emulator: Emulator) -> None:
    reply = emulator.request("POST", "/_emulator/faults", {"add": [{"kind": "earthquake"}]})
    assert reply.status == 400
    assert "earthquake" in reply.body["error"]


def test_behaviour_can_be_changed_while_running(emulator: Emulator) -> None:
    emulator.faults(racy_window=8.0, wandb_arg=False)
    behaviour = emulator.state()["behaviour"]
    assert (behaviour["racy_window"], behaviour["wandb_arg"]) == (8.0, False)


def test_rule_of_the_command_line_applies_from_the_start(start: Callable[..., Emulator]) -> None:
    emulator = start("--fault", "op=CreateAgent,kind=http,status=500,count=1")
    path = emulator.create_sweep(GRID)
    with pytest.raises(TypeError):
        emulator.create_agent(path)
    assert emulator.create_agent(path)


def test_only_listed_keys_come_in(start: Callable[..., Emulator]) -> None:
    emulator = start("--api-key", API_KEY)
    assert emulator.graphql("{ viewer { id } }", {}).status == 200
    for key in ("", "short", "c" * 40):
        reply = emulator.graphql("{ viewer { id } }", {}, key)
        assert reply.status == 401
        assert reply.body["errors"][0]["message"] == "user is not logged in"


@pytest.mark.parametrize(("key", "status"), [("", 401), ("x" * 39, 401), ("x" * 86, 200)])
def test_any_well_formed_key_comes_in_by_default(key: str, status: int, emulator: Emulator) -> None:
    assert emulator.graphql("{ viewer { id } }", {}, key).status == status


# --- the rules by themselves


def drawn(seed: int) -> list[int]:
    """How often a rule of one half bites in each of twenty requests."""
    rule = Fault(kind="http", probability=0.5)
    faults = Faults(Behaviour(), [rule], random.Random(seed))
    return [len(faults.draw("Viewer", None, Now(0.0, 0.0))) for _ in range(20)]


def test_same_seed_gives_the_same_faults() -> None:
    assert drawn(1) == drawn(1) != drawn(2)
    assert 0 < sum(drawn(1)) < 20


def test_rule_expires() -> None:
    faults = Faults(Behaviour(), [], random.Random(0))
    faults.change(Change(add=[Fault(kind="empty", for_seconds=5.0)]), Now(100.0, 0.0))
    assert faults.draw("Heartbeat", True, Now(104.0, 0.0))
    assert not faults.draw("Heartbeat", True, Now(106.0, 0.0))


def test_rule_is_read_from_text() -> None:
    rule = parse_rule("op=Heartbeat,kind=delay,seconds=0.5,max_seconds=2,after=true,count=3")
    delay = Fault(kind="delay", op="Heartbeat", seconds=0.5, max_seconds=2.0, after=True, count=3)
    assert rule == delay


@pytest.mark.parametrize("text", ["kind", "kind=earthquake", "kind=http,colour=red", "op=x"])
def test_wrong_text_is_an_error_for_the_user(text: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)):
        parse_rule(text)
