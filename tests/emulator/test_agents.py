"""Real `wandb sweep` and `wandb agent` against the emulator: whole stories, all played at once.

An agent sleeps 5 s before its first heartbeat and polls every 5 s, so the stories of this module
run beside each other in one fixture, and each test states what one of them must have shown.
"""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from tests.emulator.conftest import TRAINING, Wandb
from tests.support.emulator import Emulator, start_emulator, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AT_ONCE: Final = 5
VERSIONS: Final = ["newest", "oldest"]
BOTH: Final = pytest.mark.parametrize("version", VERSIONS)

RANDOM: Final = {
    "program": str(TRAINING),
    "method": "random",
    "parameters": {"lr": {"min": 0.1, "max": 0.9}},
}
PATIENCE: Final = 200.0
"""Seconds for anything that takes a few on an idle machine."""

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stories:
    """What each story has shown, or why it could not be told to its end."""

    facts: dict[str, Facts]
    problems: dict[str, str]

    def __getitem__(self, name: str) -> Facts:
        assert name not in self.problems, self.problems[name]
        return self.facts[name]


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory, oldest_python: Path) -> Iterator[Stories]:
    """Play all stories."""
    base = tmp_path_factory.mktemp("stories")
    pythons = {"newest": Path(sys.executable), "oldest": oldest_python}
    calm = start_emulator(base / "calm", "--time-scale", "0.01")
    stormy = start_emulator(base / "stormy", "--seed", "5")
    locked = start_emulator(base / "locked", "--api-key", "b" * 40)
    told = Stories({}, {})

    def play(name: str, version: str, emulator: Emulator, tell: Callable[[Wandb], Facts]) -> None:
        key = f"{name} {version}"
        wandb = Wandb(key, pythons[version], emulator, base / key.replace(" ", "-"))
        try:
            told.facts[key] = tell(wandb)
        except Exception as error:  # shown by the tests that need the story
            logs = "\n".join(log.read_text()[-3000:] for log in wandb.directory.glob("*.log"))
            told.problems[key] = f"{key}: {error!r}\n{logs}"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for version in reversed(VERSIONS):
            pool.submit(play, "preempted", version, calm, preempted)
            pool.submit(play, "steered", version, calm, steered)
            pool.submit(play, "weathered", version, stormy, weathered)
            pool.submit(play, "locked out", version, locked, locked_out)
        pool.submit(play, "wound down", "newest", calm, wound_down)
        pool.submit(play, "stopped run", "newest", calm, stopped_run)
    yield told
    for emulator in (calm, stormy, locked):
        emulator.stop()


# --- the stories


def preempted(wandb: Wandb) -> Facts:
    """A grid of two through one agent; the first run is given back once and goes on."""
    path = create(wandb, method="grid", parameters={"lr": {"values": [0.1, 0.2]}})
    agent = wandb.agent(
        path,
        TRAINING_END=f"preempt:{wandb.directory / 'given-back'}",
        WANDB_RESUME="allow",
    )
    status = agent.wait(timeout=2 * PATIENCE)
    runs = [wandb.emulator.run(run_id) for run_id in wandb.emulator.sweep(path)["runs"]]
    return {
        "status": status,
        "sweep": wandb.emulator.sweep(path),
        "commands": commands(wandb, path),
        "notes": notes(wandb),
        "runs": runs,
        "unknown": wandb.emulator.unknown(),
    }


def steered(wandb: Wandb) -> Facts:
    """Pause, resume and cancel a sweep by the command line while an agent trains."""
    emulator = wandb.emulator
    path = emulator.create_sweep(RANDOM)
    idle = emulator.create_agent(path)
    agent = wandb.agent(path, TRAINING_END="wait")
    wait_until("training runs", lambda: notes(wandb), PATIENCE)
    facts: Facts = {}
    for flag in ("--pause", "--resume", "--cancel"):
        status, output = wandb.command("sweep", flag, path)
        assert status == 0, output
        facts[flag] = (emulator.sweep(path)["state"], [c["type"] for c in emulator.heartbeat(idle)])
    facts["status"] = agent.wait(timeout=PATIENCE)
    (first, *_) = emulator.sweep(path)["runs"]
    wait_until("run has ended", lambda: emulator.run(first)["state"] != "running", PATIENCE)
    facts["run"] = emulator.run(first)
    late = wandb.start("late", "-m", "wandb", "agent", path)
    facts["late"] = (late.wait(timeout=PATIENCE), wandb.log("late"))
    return facts


def wound_down(wandb: Wandb) -> Facts:
    """Stop a sweep: the agent ends its run first, then gets `exit`."""
    emulator, go = wandb.emulator, wandb.directory / "go"
    path = emulator.create_sweep(RANDOM)
    agent = wandb.agent(path, TRAINING_END=f"until:{go}")
    wait_until("training runs", lambda: notes(wandb), PATIENCE)
    status, output = wandb.command("sweep", "--stop", path)
    assert status == 0, output
    while_alive = emulator.sweep(path)
    go.touch()
    status = agent.wait(timeout=PATIENCE)
    runs = [emulator.run(run_id) for run_id in emulator.sweep(path)["runs"]]
    return {"status": status, "while_alive": while_alive, "runs": runs}


def stopped_run(wandb: Wandb) -> Facts:
    """A person stops one run; the agent ends it and trains the next one."""
    emulator = wandb.emulator
    path = emulator.create_sweep(RANDOM)
    agent = wandb.agent(path, TRAINING_END="wait")
    wait_until("training runs", lambda: notes(wandb), PATIENCE)
    (first,) = emulator.sweep(path)["runs"]
    emulator.stop_run(first)
    wait_until("next training runs", lambda: len(notes(wandb)) == 2, PATIENCE)
    emulator.set_sweep_state(path, "CANCELED")
    return {
        "status": agent.wait(timeout=PATIENCE),
        "run": emulator.run(first),
        "commands": commands(wandb, path),
    }


def weathered(wandb: Wandb) -> Facts:
    """One run to its end through all kinds of trouble."""
    grid = {"method": "grid", "parameters": {"lr": {"values": [0.5]}}}
    path = wandb.emulator.create_sweep({"program": str(TRAINING), **grid})
    wandb.emulator.faults(
        {"kind": "delay", "seconds": 0.01, "max_seconds": 0.3},
        {"kind": "http", "op": "Heartbeat", "status": 500, "count": 2},
        {"kind": "http", "op": "UpsertBucket", "status": 429, "retry_after": 1, "count": 1},
        {"kind": "http", "op": "file_stream", "status": 502, "count": 1},
        {"kind": "drop", "op": "upload", "count": 1},
        {"kind": "empty", "op": "Heartbeat", "count": 1, "idle": True},
        {"kind": "command", "op": "Heartbeat", "count": 1, "command": {"type": "dance"}},
    )
    status = wandb.agent(path).wait(timeout=2 * PATIENCE)
    (run_id,) = wandb.emulator.sweep(path)["runs"]
    return {
        "status": status,
        "run": wandb.emulator.run(run_id),
        "sweep": wandb.emulator.sweep(path),
    }


def locked_out(wandb: Wandb) -> Facts:
    """A key that the server does not know."""
    status, output = wandb.command("agent", "emulator/tests/abcdefgh")
    return {"status": status, "output": output, "refused": wandb.emulator.events("key_refused")}


# --- what the stories have in common


def create(wandb: Wandb, **config: Any) -> str:
    """Create a sweep with the command line; return the path that it prints."""
    wandb.directory.mkdir(parents=True, exist_ok=True)
    file = wandb.directory / "sweep.yaml"
    file.write_text(yaml.safe_dump({"program": str(TRAINING), **config}))
    status, output = wandb.command("sweep", "--project", "tests", file.name)
    assert status == 0, output
    found = re.search(r"wandb agent (emulator/tests/\w{8})", output)
    assert found is not None, output
    return found[1]


def notes(wandb: Wandb) -> list[dict[str, Any]]:
    """What the training processes of a story have written."""
    file = wandb.directory / "notes"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def commands(wandb: Wandb, path: str) -> list[tuple[str, str | None]]:
    """The commands that the agents of a sweep got, in order."""
    agents = wandb.emulator.sweep(path)["agents"]
    events = wandb.emulator.events("command")
    return [(event["type"], event["run"]) for event in events if event["agent"] in agents]


# --- what they must show


@BOTH
def test_plain_agent_trains_a_grid_until_the_sweep_is_finished(
    version: str, stories: Stories
) -> None:
    story = stories[f"preempted {version}"]
    assert story["status"] == 0
    assert story["sweep"]["state"] == "FINISHED"
    assert story["sweep"]["ended_by"] == "exhausted"
    assert [run["state"] for run in story["runs"]] == ["finished", "finished"]
    assert [run["config"]["lr"]["value"] for run in story["runs"]] == [0.1, 0.2]


@BOTH
def test_preempted_run_is_resumed_before_a_new_configuration_is_made(
    version: str, stories: Stories
) -> None:
    story = stories[f"preempted {version}"]
    first, second = story["sweep"]["runs"]
    expected = [("run", first), ("resume", first), ("run", second), ("exit", None)]
    assert story["commands"] == expected


@BOTH
def test_resume_allow_goes_on_after_the_last_step(version: str, stories: Stories) -> None:
    story = stories[f"preempted {version}"]
    assert [note["first_step"] for note in story["notes"]] == [0, 3, 0]
    assert [(run["rows"], run["last_step"]) for run in story["runs"]] == [(6, 5), (3, 2)]


@BOTH
def test_resume_commands_carry_the_hidden_argument(version: str, stories: Stories) -> None:
    story = stories[f"preempted {version}"]
    hidden = [any("_wandb" in arg for arg in note["args"]) for note in story["notes"]]
    assert hidden == [False, True, False]


@BOTH
def test_normal_flow_asks_nothing_unknown(version: str, stories: Stories) -> None:
    assert stories[f"preempted {version}"]["unknown"] == []


@BOTH
def test_command_line_pauses_resumes_and_cancels(version: str, stories: Stories) -> None:
    story = stories[f"steered {version}"]
    assert story["--pause"] == ("PAUSED", [])
    assert story["--resume"] == ("RUNNING", ["run"])
    assert story["--cancel"] == ("CANCELED", ["exit"])


@BOTH
def test_cancel_makes_agents_kill_their_training(version: str, stories: Stories) -> None:
    story = stories[f"steered {version}"]
    assert story["status"] == 0
    # The old SDK's service reports success for a training that was killed.
    assert story["run"]["state"] == {"newest": "killed", "oldest": "finished"}[version]


@BOTH
def test_agent_of_a_canceled_sweep_is_refused(version: str, stories: Stories) -> None:
    status, output = stories[f"steered {version}"]["late"]
    assert status == 1
    assert "is not running" in output


def test_agents_of_a_stopped_sweep_end_their_run_and_exit(stories: Stories) -> None:
    story = stories["wound down newest"]
    assert story["while_alive"]["state"] == "FINISHED"
    assert story["while_alive"]["ended_by"] == "user"
    assert story["status"] == 0
    assert [run["state"] for run in story["runs"]] == ["finished"]


def test_stopped_run_is_killed_and_its_agent_trains_the_next(stories: Stories) -> None:
    story = stories["stopped run newest"]
    assert (story["run"]["state"], story["run"]["stop_requested"]) == ("killed", True)
    assert [kind for kind, _ in story["commands"]][-1] == "exit"
    assert story["status"] == 0


@BOTH
def test_agent_weathers_faults_and_loses_nothing(version: str, stories: Stories) -> None:
    story = stories[f"weathered {version}"]
    assert story["status"] == 0
    assert (story["run"]["state"], story["run"]["last_step"]) == ("finished", 2)
    assert story["sweep"]["state"] == "FINISHED"


@BOTH
def test_unknown_key_ends_the_agent_with_an_error(version: str, stories: Stories) -> None:
    story = stories[f"locked out {version}"]
    assert story["status"] == 1
    assert "not logged in" in story["output"]
    assert story["refused"]
