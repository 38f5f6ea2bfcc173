"""Guards that `--count 1` took away: bad nodes, full disks."""

from collections.abc import Callable
from pathlib import Path

from tests.support.disks import small_disk
from tests.support.emulator import Emulator, wait_until
from tests.support.events import check_events
from tests.support.long import long_play
from tests.support.node import Node, sweep_config

MakeNode = Callable[..., Node]
SOON = ("--set", "sweep.poll_seconds=0.5")


def breaker(**keys: object) -> list[str]:
    return [word for key, value in keys.items() for word in ("--set", f"breaker.{key}={value}")]


@long_play
def test_a_bad_node_opens_its_breaker_and_the_others_finish_the_sweep(
    emulator: Emulator, make_node: MakeNode, redis_url: str
) -> None:
    sweep = emulator.create_sweep(sweep_config(7, seconds=0.2))
    shared = ("--redis-url", redis_url, *SOON)
    rules = breaker(failures=3, cooldown_seconds=500)
    bad = make_node(sweep, "--slots", "2", *rules, *shared, name="bad", BROKEN_WHILE="/")
    bad.start()
    wait_until("its breaker is open", lambda: bad.events("breaker_opened"), 120)
    good = [make_node(sweep, "--slots", "1", *shared, name=name).start() for name in "bc"]

    def ended() -> bool:
        """Every run has been handed out, and has ended as good or bad."""
        lost = [view for view in bad.history() if view["outcome"] == "failed"]
        won = [view for node in good for view in node.history() if view["outcome"] == "finished"]
        return len(lost) + len(won) == 7

    wait_until("all seven runs have ended", ended, 240)
    (opened,) = bad.events("breaker_opened")
    assert (opened["scope"], opened["failures"]) == ("node", 3)
    assert "ended before wandb.init" in opened["reason"]
    failed = [record["run"] for record in bad.records("begin") if record["node"] == "bad"]
    assert 3 <= len(failed) <= 4, "each slot may have had one more under way"
    finished = {r for r, run in emulator.state()["runs"].items() if run["state"] == "finished"}
    assert len(finished) == 7 - len(failed)
    assert finished.isdisjoint(failed)

    status = bad.ctl("status", check=5)
    assert [view["scope"] for view in status["breakers"]] == ["node"]
    assert any(reason.startswith("breaker: node: open") for reason in status["degraded"])
    assert "breakers closed: 1" in bad.ctl("resume")["message"]
    assert bad.events("breaker_closed")
    assert bad.ctl("status")["breakers"] == []
    for node in (bad, *good):
        node.ctl("stop")
        assert node.wait() == 0, node.tail()
        check_events(node.events())


def test_a_probe_closes_the_breaker_of_a_repaired_node(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(6, seconds=0.2))
    rules = breaker(failures=2, cooldown_seconds=3)
    node = make_node(sweep, "--slots", "1", *rules, *SOON)
    broken = node.directory / "broken"
    broken.parent.mkdir(parents=True)
    broken.touch()
    node.env["BROKEN_WHILE"] = str(broken)
    node.start()
    wait_until("its breaker is open", lambda: node.events("breaker_opened"), 120)
    broken.unlink()

    wait_until("its breaker is closed again", lambda: node.events("breaker_closed"), 120)

    # One more may have been claimed when the breaker opened; it is not the probe.
    outcomes = [view["outcome"] for view in node.history()]
    assert outcomes[:2] == ["failed", "failed"]
    assert set(outcomes[2:]) == {"finished"}
    names = [event["event"] for event in node.events() if event["event"].startswith("breaker")]
    assert names == ["breaker_opened", "breaker_half_open", "breaker_closed"]
    node.ctl("stop")
    assert node.wait() == 0, node.tail()
    check_events(node.events())


def test_without_room_on_its_disk_a_node_claims_nothing_and_says_so(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1))
    node = make_node(sweep, "--slots", "1", *breaker(min_free_bytes=10**17), *SOON).start()
    wait_until("claims are held", lambda: node.events("claims_held"))
    wait_until("it looks", lambda: node.status().get("degraded"))

    status = node.ctl("status", check=5)

    assert "min_free_bytes" in status["degraded"][0]
    assert not node.events("run_claimed")
    assert emulator.sweep(sweep)["state"] == "RUNNING"
    node.ctl("stop")
    assert node.wait() == 0, node.tail()
    check_events(node.events())


def test_while_w_and_b_refuses_the_key_nothing_is_claimed_and_no_failure_counts(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=0.2))
    node = make_node(sweep, "--slots", "1", "--until-done", *breaker(failures=1), *SOON)
    node.start()
    wait_until("an agent waits", lambda: node.events("agent_registered"))
    emulator.faults({"kind": "http", "status": 401})
    wait_until("claims are held", lambda: node.events("claims_held"))
    assert "refused the W&B API key" in node.events("claims_held")[0]["reason"]
    wait_until("it is said", lambda: "API key" in str(node.status().get("degraded")))

    emulator.faults(clear=True)

    assert node.wait() == 0, node.tail()
    assert [view["outcome"] for view in node.history()] == ["finished"]
    assert node.events("claims_freed")
    assert node.events("breaker_opened") == []
    check_events(node.events())


@long_play
def test_a_run_that_fails_each_time_it_is_resumed_is_quarantined_until_it_is_pardoned(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=1.5, mark=1, exit=3))
    rules = breaker(run_failures=2, early_seconds=60)
    node = make_node(sweep, "--slots", "1", *rules, *SOON).start()
    wait_until("it is quarantined", lambda: node.events("run_quarantined"), 200)
    run = node.records("begin")[0]["run"]
    wait_until("it is dropped", lambda: node.events("claim_dropped"))
    assert node.events("claim_dropped")[0]["reason"] == "quarantined"
    outcomes = [view["outcome"] for view in node.history()]
    assert set(outcomes) == {"preempted"}
    assert 3 <= len(outcomes) <= 4, "it may have been claimed again before its end was judged"
    assert "failed 2 times in a row" in str(node.ctl("leases", "show", run))

    assert "may be trained again" in node.ctl("resume", run)["message"]

    assert node.events("run_pardoned")
    node.ctl("stop")
    assert node.wait() == 0, node.tail()
    check_events(node.events())


def test_a_disk_that_fills_during_a_training_loses_nothing(
    emulator: Emulator, make_node: MakeNode, tmp_path: Path
) -> None:
    disk = tmp_path / "n" / "a"
    filler = disk / "filler"
    sweep = emulator.create_sweep(sweep_config(2, seconds=0.3, fill=str(filler)))
    rules = breaker(min_free_bytes=10**6)
    flags = ("--slots", "1", "--until-done", "--set", "rescue.backoff_seconds=0.1", *rules, *SOON)
    with small_disk(disk, mebibytes=24):
        node = make_node(sweep, *flags).start()
        for count in range(2):
            wait_until("it is excused", lambda: excused(node) > count)  # noqa: B023
            wait_until("it is said", lambda: "bytes are free" in str(node.status()), 20)
            filler.unlink()

        assert node.wait() == 0, node.tail()
        history = node.history()
    outcomes = [view["outcome"] for view in history]
    assert sorted(outcomes) == ["failed", "failed", "finished", "finished"], history
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"finished"}


def excused(node: Node) -> int:
    """By the log beside the full disk: the file of events is on it."""
    return node.log.read_text().count("failure_excused")
