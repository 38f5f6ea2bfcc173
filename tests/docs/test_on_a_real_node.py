"""What the pages show works: their script is preempted and resumed, their jq lines read its events.

One node with real wandb agents, preempted by SIGTERM and started again, serves all tests of this
file.
"""

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from coordinator.core.model import CommandKind
from coordinator.process.tree import CLAIM_VARIABLE
from coordinator.supervisor.slot import training_environment
from tests.docs.blocks import DOCS, blocks, table
from tests.support.emulator import Emulator, start_emulator, wait_until
from tests.support.events import check_events
from tests.support.node import Node

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
"""The first test pays for both nodes: half a minute alone, several when the cores are shared."""
PATIENCE_SECONDS = 200
STEPS = 25
LEAN = ("--set", "pool.warm_agents=0")
JQ = blocks("events.md", "jq")


@dataclass(frozen=True, slots=True)
class Preempted:
    """What was left behind by one preemption and the resumption after it."""

    node: Node
    codes: tuple[int, int]
    server_between: dict[str, Any]
    server_at_end: dict[str, Any]

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.node.events()

    @property
    def run_id(self) -> str:
        (run_id,) = {event["run_id"] for event in self.node.events("run_started")}
        return str(run_id)


def the_only_run(emulator: Emulator) -> dict[str, Any]:
    (run,) = emulator.state()["runs"].values()
    return dict(run)


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preempted]:
    """The script of docs/training.md under a node: SIGTERM after some steps, then a second node."""
    directory = tmp_path_factory.mktemp("docs")
    script = directory / "saves.py"
    script.write_text(blocks("training.md", "run")["saves.py"])
    emulator = start_emulator(directory / "emulator")
    parameters = {"lr": {"values": [0.5]}, "steps": {"value": STEPS}}
    config = {"program": str(script), "method": "grid", "parameters": parameters}
    node = Node("a", emulator, directory / "n", emulator.create_sweep(config))
    try:
        node.start("--slots", "1", *LEAN)
        wait_until(
            "the training runs", lambda: "begins after step" in node.said(), PATIENCE_SECONDS
        )
        node.send(signal.SIGTERM)
        first, between = node.wait(PATIENCE_SECONDS), the_only_run(emulator)
        second = node.start("--slots", "1", "--until-done", *LEAN).wait(PATIENCE_SECONDS)
        yield Preempted(node, (first, second), between, the_only_run(emulator))
    finally:
        node.end()
        emulator.stop()


# --- docs/training.md -----------------------------------------------------------------------------
def test_the_script_is_preempted_and_continues_after_the_saved_step(preempted: Preempted) -> None:
    assert preempted.codes == (75, 0), preempted.node.tail()
    assert preempted.server_between["state"] == "preempted"
    assert preempted.server_at_end["state"] == "finished"
    output = preempted.node.said()
    begun = [int(step) for step in re.findall(r"begins after step (\d+)\.", output)]
    saved = [int(step) for step in re.findall(r"saved after step (\d+)\.", output)]
    assert 0 < saved[0] < STEPS
    assert (begun, len(saved)) == ([0, saved[0]], 1)
    curve = [row["_step"] for row in preempted.server_at_end["history"]]
    assert curve == list(range(1, STEPS + 1)), "the curve goes on without a gap or a repeat"
    outcomes = [view["outcome"] for view in preempted.node.history()]
    assert outcomes == ["preempted", "finished"]


def test_the_signal_came_once_and_by_our_order(preempted: Preempted) -> None:
    sent = [(event["signal"], event["origin"]) for event in preempted.node.events("signal_sent")]
    assert sent == [("SIGTERM", "daemon")]


def test_every_variable_that_a_training_gets_is_in_the_table() -> None:
    changes = training_environment({}, "allow", lambda _slot: ["0"])(CommandKind.RESUME, 0)
    added = {*changes, CLAIM_VARIABLE, "COORDINATOR_RUN_FENCE"}
    rows = table("training.md", "variable", "when", "value")
    assert {row[0].strip("`") for row in rows} == added


# --- docs/events.md -------------------------------------------------------------------------------
def test_every_event_of_the_node_is_documented(preempted: Preempted) -> None:
    names = {event["event"] for event in preempted.events}
    assert {"run_claimed", "lease_acquired", "run_started", "notice_received", "signal_sent",
            "tree_gone", "lease_released", "run_ended", "daemon_stopped"} <= names  # fmt: skip
    check_events(preempted.events)


def test_the_life_of_a_run_has_the_documented_order(preempted: Preempted) -> None:
    documented = ["run_claimed", "lease_acquired", "run_started", "run_exited", "tree_gone",
                  "lease_released", "run_ended"]  # fmt: skip
    text = (DOCS / "events.md").read_text(encoding="utf-8")
    sentence = re.search(r"events of a run are, in this order: (.+?)\.\n", text, re.DOTALL)
    assert sentence is not None
    assert re.findall(r"`(\w+)`", sentence[1]) == documented
    life = [event["event"] for event in preempted.events if event["event"] in documented]
    assert life == documented * 2


def jq(preempted: Preempted, name: str) -> list[str]:
    """The lines that a documented command prints where the events file is."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    command = JQ[name].replace("RUN_ID", preempted.run_id)
    done = subprocess.run(
        ["bash", "-euc", command], cwd=preempted.node.state_dir, text=True, timeout=20,
        stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_jq_shows_the_life_of_a_run(preempted: Preempted) -> None:
    lines = [line.split("  ") for line in jq(preempted, "life")]
    assert [line[1] for line in lines] == [
        event["event"] for event in preempted.events if event.get("run_id") == preempted.run_id
    ]
    assert ["run_ended", "preempted"] in [line[1:] for line in lines]


def test_jq_shows_and_counts_the_outcomes(preempted: Preempted) -> None:
    rows = [line.split("\t") for line in jq(preempted, "outcomes")]
    assert [row[2] for row in rows] == ["preempted", "finished"]
    assert rows[0][4] == "PREEMPTED"
    assert jq(preempted, "counts") == ["finished 1", "preempted 1"]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("gaps", "tree_gone", "run_started"), ("handoffs", "lease_released", "lease_acquired")],
)
def test_jq_measures_times(preempted: Preempted, name: str, before: str, after: str) -> None:
    (row,) = [line.split("\t") for line in jq(preempted, name)]
    from_ = preempted.node.events(before)[0]["ts"]
    to = preempted.node.events(after)[1]["ts"]
    assert preempted.run_id in row
    assert float(row[-1]) == pytest.approx(_seconds(to) - _seconds(from_), abs=0.002)


def _seconds(ts: str) -> float:
    return datetime.fromisoformat(ts).timestamp()


def test_jq_shows_trouble(preempted: Preempted) -> None:
    shown = [json.loads(line)["event"] for line in jq(preempted, "trouble")]
    assert shown == [e["event"] for e in preempted.events if e["level"] in {"warning", "error"}]
    assert "notice_received" in shown
