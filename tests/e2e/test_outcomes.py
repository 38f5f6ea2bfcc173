"""Each way to end gets its right outcome; the slot is free when the whole tree is gone."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cgroups import memory_group
from tests.support.emulator import Emulator, wait_until
from tests.support.node import TRAIN, Node, sweep_config

MakeNode = Callable[..., Node]


def ended(node: Node) -> dict[str, object]:
    views = [view for view in node.runs() if view["ended"]]
    return views[-1] if views else {}


@pytest.mark.parametrize(
    ("parameters", "outcome", "exit_code", "signal"),
    [
        ({"exit": 0}, "finished", 0, None),
        ({"exit": 3}, "failed", 3, None),
        ({"die": 9}, "crashed", None, "SIGKILL"),
    ],
)
def test_a_training_that_ends_by_itself(
    emulator: Emulator,
    make_node: MakeNode,
    parameters: dict[str, Any],
    outcome: str,
    exit_code: int | None,
    signal: str | None,
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, seconds=0.3, **parameters))
    node = make_node(sweep, "--slots", "1").start()

    view = wait_until("the run has ended", lambda: ended(node), 180)

    assert (view["outcome"], view["exit_code"], view["signal"]) == (outcome, exit_code, signal)
    assert node.events("run_ended")[0]["outcome"] == outcome
    exited, gone = node.events("run_exited")[0], node.events("tree_gone")[0]
    assert exited["ts"] <= gone["ts"]
    node.ctl("stop")
    assert node.wait() == 0


def test_a_training_that_runs_out_of_memory_is_known_as_such(
    emulator: Emulator, make_node: MakeNode
) -> None:
    with memory_group(64 << 20) as group:
        sweep = emulator.create_sweep(sweep_config(1, memory_group=str(group)))
        node = make_node(sweep, "--slots", "1").start()

        view = wait_until("the run has ended", lambda: ended(node), 180)

        assert (view["outcome"], view["signal"]) == ("oom", "SIGKILL")
        assert not node.events("rescue_queued")
        node.ctl("stop")
        assert node.wait() == 0
        node.wait_nothing_left()


@pytest.mark.parametrize(("on_term", "outcome", "code"), [("save", "preempted", 143),
                                                          ("zero", "preempt_lost", 0)])  # fmt: skip
def test_a_training_that_handles_a_preemption(
    emulator: Emulator, make_node: MakeNode, on_term: str, outcome: str, code: int
) -> None:
    config = sweep_config(1, seconds=300.0, on_term=on_term, save_seconds=0.2)
    node = make_node(emulator.create_sweep(config), "--slots", "1").start()
    node.wait_running(1)
    wait_until("the run logs", lambda: node.records("init"))

    node.ctl("preempt")
    view = wait_until("the run has ended", lambda: ended(node))

    assert (view["outcome"], view["exit_code"]) == (outcome, code)
    node.ctl("stop")
    assert node.wait() == 0


def test_a_training_behind_a_shell_finishes(emulator: Emulator, make_node: MakeNode) -> None:
    command = ["bash", "-c", f"python {TRAIN} --seconds 0.3; echo done"]
    sweep = emulator.create_sweep(sweep_config(1, command))
    node = make_node(sweep, "--slots", "1", "--until-done").start()

    assert node.wait() == 0, node.tail()

    assert [view["outcome"] for view in node.history()] == ["finished"]
    assert any("done\n" in path.read_text() for path in (node.state_dir / "logs").iterdir())
    assert not node.processes()


def test_a_slot_is_free_only_when_the_last_process_is_gone(
    emulator: Emulator, make_node: MakeNode
) -> None:
    # The main process leaves two children behind that live for ten minutes.
    sweep = emulator.create_sweep(sweep_config(1, seconds=0.3, children=2))
    node = make_node(sweep, "--slots", "1", "--set", "pool.linger_seconds=2").start()

    wait_until("the main process has ended", lambda: node.events("run_exited"), 180)
    children = node.records("begin")[0]["children"]
    if not node.events("tree_gone"):
        assert node.status()["slots"][0]["state"] in {"closing", "idle", "claiming"}
    gone = wait_until("the tree is gone", lambda: node.events("tree_gone"))

    assert gone[0]["killed"] == 2
    assert not set(children) & set(node.processes())
    node.ctl("stop")
    assert node.wait() == 0


def test_a_command_that_does_not_exist_fails_in_words(
    emulator: Emulator, make_node: MakeNode
) -> None:
    sweep = emulator.create_sweep(sweep_config(1, ["/no/such/program", "${args}"]))
    node = make_node(sweep, "--slots", "1").start()

    view = wait_until("the run has ended", lambda: ended(node), 180)

    assert (view["outcome"], view["exit_code"]) == ("failed", 127)
    assert "No such file or directory" in str(view["detail"])
    node.ctl("stop")
    assert node.wait() == 0
