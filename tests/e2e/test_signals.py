"""Signals to the daemon reach each main training process once; the grace; then the whole tree."""

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.emulator import Emulator, wait_until
from tests.support.node import Node, sweep_config

MakeNode = Callable[..., Node]


def busy_node(emulator: Emulator, make_node: MakeNode, *flags: str, **parameters: Any) -> Node:
    """A node whose two slots train, past `init` and with their handlers in place."""
    config = sweep_config(2, seconds=300.0, **parameters)
    node = make_node(
        emulator.create_sweep(config), "--slots", "2", "--redis-url", "embedded", *flags
    )
    node.start().wait_running(2)
    wait_until("both runs log", lambda: len(node.records("init")) == 2)
    return node


def signals_seen(node: Node) -> dict[int, list[int]]:
    seen: dict[int, list[int]] = {record["pid"]: [] for record in node.records("begin")}
    for record in node.records("signal"):
        seen[record["pid"]].append(record["signal"])
    return seen


def test_sigterm_reaches_each_training_once_and_waits_for_its_save(
    emulator: Emulator, make_node: MakeNode
) -> None:
    node = busy_node(emulator, make_node, on_term="save", save_seconds=1.5)

    node.send(signal.SIGTERM)

    assert node.wait() == 75, node.tail()
    assert list(signals_seen(node).values()) == [[signal.SIGTERM]] * 2
    assert len(node.records("saved")) == 2
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"preempted"}
    assert [view["outcome"] for view in node.history()] == ["preempted"] * 2
    assert not node.processes()


def test_a_storm_of_signals_changes_nothing(emulator: Emulator, make_node: MakeNode) -> None:
    node = busy_node(emulator, make_node, on_term="save", save_seconds=1.5)

    for signum in (signal.SIGCONT, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM):
        node.send(signum)
        time.sleep(0.1)  # the storm itself: four signals within 0.4 s

    assert node.wait() == 75, node.tail()
    assert list(signals_seen(node).values()) == [[signal.SIGTERM]] * 2
    assert len(node.records("saved")) == 2
    assert {run["state"] for run in emulator.state()["runs"].values()} == {"preempted"}
    assert not node.processes()


def test_a_training_that_ignores_sigterm_is_gone_at_the_grace_with_its_grandchildren(
    emulator: Emulator, make_node: MakeNode
) -> None:
    node = busy_node(
        emulator, make_node, "--set", "preemption.grace_seconds=3", on_term="ignore", children=2
    )
    grandchildren = [pid for record in node.records("begin") for pid in record["children"]]
    assert len(grandchildren) == 4
    began = time.monotonic()

    node.send(signal.SIGTERM)
    wait_until("the signal arrives", lambda: len(node.records("signal")) == 2)
    assert set(grandchildren) <= set(node.processes()), "grandchildren live through the grace"

    assert node.wait() == 75, node.tail()
    assert time.monotonic() - began >= 3
    assert not node.processes()
    assert list(signals_seen(node).values()) == [[signal.SIGTERM]] * 2
    outputs = "".join(path.read_text() for path in (node.state_dir / "logs").iterdir())
    assert "CHILD GOT TERM" not in outputs
    assert [view["outcome"] for view in node.history()] == ["interrupted"] * 2


@pytest.mark.parametrize("incoming", ["SIGINT", "SIGUSR1", "SIGUSR2"])
def test_each_notice_is_mapped_and_sent_once(
    emulator: Emulator, make_node: MakeNode, incoming: str
) -> None:
    """SIGINT as the preset says, the others as we say: that beats it."""
    mapping = '{"SIGUSR1": "SIGUSR2", "SIGUSR2": "SIGUSR1"}'
    expected = {"SIGINT": signal.SIGTERM, "SIGUSR1": signal.SIGUSR2, "SIGUSR2": signal.SIGUSR1}
    node = busy_node(
        emulator, make_node, "--set", "preemption.preset=torchrun",
        "--set", f"preemption.signals={mapping}", on_term="save", save_seconds=0.2,
    )  # fmt: skip

    node.send(getattr(signal, incoming))

    assert node.wait() == 75, node.tail()
    assert list(signals_seen(node).values()) == [[expected[incoming]]] * 2
    assert len(node.records("saved")) == 2
    assert not node.processes()


def test_a_launcher_is_passed_over_where_the_preset_says_so(
    emulator: Emulator, make_node: MakeNode
) -> None:
    """The shell dies of a signal and does not pass it on, as accelerate does."""
    launcher = f'LOCAL_RANK=0 {sys.executable} "$0" "$@"; exit 1'
    command = ["sh", "-c", launcher, "${program}", "${args}"]
    config = sweep_config(1, command, seconds=300.0, on_term="save", save_seconds=0.2)
    node = make_node(
        emulator.create_sweep(config), "--slots", "1", "--redis-url", "embedded",
        "--set", "preemption.preset=accelerate",
    ).start()  # fmt: skip
    wait_until("the run logs", lambda: node.records("init"), 120)

    node.send(signal.SIGUSR1)

    assert node.wait() == 75, node.tail()
    assert list(signals_seen(node).values()) == [[signal.SIGTERM]]
    assert [view["outcome"] for view in node.history()] == ["preempted"]
    assert [event["pid"] for event in node.events("signal_sent")] == list(signals_seen(node))
    assert not node.processes()


def test_ctl_signal_reaches_its_target_alone_and_preempt_frees_the_node(
    emulator: Emulator, make_node: MakeNode
) -> None:
    node = busy_node(emulator, make_node, on_term="save", save_seconds=0.2)
    slots = {slot["slot"]: slot for slot in node.running()}

    node.ctl("signal", "TERM", "1")
    wait_until("slot 1 has saved", lambda: node.records("saved"))
    assert [record["pid"] for record in node.records("signal")] == [slots[1]["pid"]]

    node.ctl("preempt")
    wait_until("drained", lambda: node.status().get("state") == "drained")
    assert signals_seen(node)[slots[0]["pid"]] == [signal.SIGTERM]
    node.ctl("stop")
    assert node.wait() == 0, node.tail()
    assert not node.processes()


def test_a_second_notice_hurries_and_a_third_kills(emulator: Emulator, make_node: MakeNode) -> None:
    node = busy_node(
        emulator, make_node, "--set", "preemption.storm_seconds=0.1",
        "--set", "preemption.grace_seconds=600", on_term="ignore",
    )  # fmt: skip

    def notice(count: int) -> None:
        node.send(signal.SIGTERM)
        wait_until(f"notice {count}", lambda: len(node.events("notice_received")) == count)
        time.sleep(0.2)  # longer than the storm window

    for count in (1, 2, 3):
        notice(count)

    assert node.wait(30) == 75, node.tail()
    steps = [event["step"] for event in node.events("notice_received")]
    assert steps == ["ask", "hurry", "kill"]
    assert list(signals_seen(node).values()) == [[signal.SIGTERM]] * 2
    assert not node.processes()
