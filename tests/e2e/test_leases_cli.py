"""Two daemons, one Redis: what one node holds is seen and taken back from the other."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.emulator import Emulator, wait_until
from tests.support.node import Node, overlaps, sweep_config

MakeNode = Callable[..., Node]


@pytest.fixture
def pair(emulator: Emulator, make_node: MakeNode, redis_url: str) -> tuple[Node, Node]:
    """Node a trains one of the sweep's two runs; node b has no slot yet, so it claims nothing."""
    config = sweep_config(2, seconds=600.0, resumed_seconds=0.5, on_term="save", save_seconds=0.2)
    sweep = emulator.create_sweep(config)
    flags = ("--redis-url", redis_url, "--set", "sweep.poll_seconds=0.5",
             "--set", "redis.renew_seconds=3")  # fmt: skip
    a = make_node(sweep, *flags, "--slots", "1", name="a").start()
    b = make_node(sweep, *flags, "--slots", "0", name="b").start()
    a.wait_running(1)
    wait_until("the run logs", lambda: a.records("init"))
    wait_until("b answers", b.status)
    return a, b


def the_lease(node: Node) -> dict[str, Any]:
    """The only lease of the sweep as `node` sees it."""
    (row,) = node.ctl("leases", "ls")
    found: dict[str, Any] = row
    return found


def nodes_of(run: str, node: Node) -> list[str]:
    """Where trainings of `run` have begun, in order."""
    return [record["node"] for record in node.records("begin") if record["run"] == run]


def test_what_one_node_holds_is_seen_and_stolen_from_the_other(
    emulator: Emulator, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    slot = a.running()[0]
    seen = the_lease(b)
    assert (seen["run_id"], seen["owner"], seen["slot"]) == (slot["run_id"], "a", slot["slot"])
    assert (seen["state"], seen["kind"]) == ("held", "run")
    run, fence = str(seen["run_id"]), int(seen["fence"])
    assert fence == a.events("lease_acquired")[0]["fence"]

    def told() -> dict[str, tuple[object, ...]]:
        wanted = ("alive", "slots", "busy", "leases_held", "pid", "state")
        return {row["node"]: tuple(map(row.get, wanted)) for row in b.ctl("nodes")}

    wait_until("both nodes tell of themselves", lambda: told() == {
        "a": (True, 1, 1, 1, a.status()["pid"], "running"),
        "b": (True, 0, 0, 0, b.status()["pid"], "running"),
    })  # fmt: skip

    refused = b.ctl("leases", "steal", run, "--fence", str(fence - 1), check=6)
    assert f"fence {fence} now, not {fence - 1}" in refused["error"]
    refused = b.ctl("leases", "release", run, "--fence", str(fence), check=6)
    assert "leases steal" in refused["error"]
    assert a.records("signal") == []

    a.ctl("pause")
    done = b.ctl("leases", "steal", run, "--fence", str(fence), "--to", "b")
    assert done["answer"] == "done"
    wait_until("the lease is free", lambda: b.ctl("leases", "ls") == [])

    views = wait_until("its end is on record", a.history)
    assert [view["outcome"] for view in views] == ["preempted"]
    assert [record["signal"] for record in a.records("signal")] == [15]
    assert len(a.events("lease_given_up")) == 1
    assert a.running() == []
    assert a.process is not None
    assert a.process.poll() is None, "the daemon itself goes on"
    shown = b.ctl("leases", "show", run)
    assert (shown["state"], shown["attempts"]) == ("released", 1)
    assert b.runs() == []
    assert b.ctl("runs", run) == views, "what it has been through is known on every node"
    assert (shown["last_outcome"], shown["last_outcome_node"]) == ("preempted", "a")
    assert shown["outcomes"] == {"preempted": 1}

    b.ctl("scale", "1")
    wait_until("b has trained it to its end", b.history)
    assert nodes_of(run, a) == ["a", "b"]
    assert b.events("lease_acquired")[0]["fence"] > fence
    assert emulator.run(run)["state"] == "finished"
    assert overlaps(a.records()) == []
    assert [record["signal"] for record in a.records("signal")] == [15]


def test_the_lease_of_a_node_that_died_is_released_from_another(
    emulator: Emulator, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    seen = the_lease(b)
    run, fence = str(seen["run_id"]), str(seen["fence"])
    a.end()

    def silent() -> bool:
        return any(row["node"] == "a" and not row["alive"] for row in b.ctl("nodes"))

    def released() -> bool:
        # Counted from the lease's last renewal, which may be later than a's last word as a node.
        return b.ctl_raw("leases", "release", run, "--fence", fence).returncode == 0

    wait_until("a is silent", silent)
    assert the_lease(b)["state"] == "held", "its deadline is a minute away"
    wait_until("the lease is released", released)
    assert b.ctl("leases", "ls") == []
    again = b.ctl("leases", "release", run, "--fence", fence, check=6)
    assert "free already" in again["error"]
    (event,) = b.events("lease_released_by_operator")
    assert (event["holder"], event["forced"]) == ("a", False)

    emulator.silence_run(run)  # as the server would find out in five minutes
    b.ctl("scale", "1")
    wait_until("b has trained it to its end", b.history)
    assert [(view["run_id"], view["outcome"]) for view in b.history()] == [(run, "finished")]
    assert nodes_of(run, b) == ["a", "b"]
    assert overlaps(b.records()) == []
