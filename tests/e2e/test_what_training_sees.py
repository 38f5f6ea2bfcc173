"""What the training sees equals what a bare agent gives it, save documented keys."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.emulator import Emulator, wait_until
from tests.support.node import Node

MakeNode = Callable[..., Node]
PROBE = Path(__file__).with_name("probe.py")
DOCUMENTED = {"COORDINATOR_RUN_CLAIM", "COORDINATOR_RUN_SLOT", "COORDINATOR_RUN_FENCE"}
DIFFERENT_EACH_TIME = {"WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_SERVICE", "_"}

COMMANDS: dict[str, list[str] | None] = {
    "default": None,
    "spelled out": ["${env}", "${interpreter}", "${program}", "${args}"],
    "no hyphens": ["${env}", "${interpreter}", "${program}", "${args_no_hyphens}"],
    "json file": ["${env}", "python", "${program}", "${args_json_file}"],
    "variable": ["${env}", "python", "${program}", "${envvar:COLOUR}", "--fixed"],
    "plain program": [str(PROBE), "--plain", "${args}"],
}


def look(emulator: Emulator, make_node: MakeNode, command: list[str] | None, *, bare: bool) -> Any:
    """One run of the probe, under a bare agent or under a node."""
    config: dict[str, Any] = {
        "program": str(PROBE),
        "method": "grid",
        "parameters": {"lr": {"values": [0.5]}, "name": {"values": ["a b"]}},
    }
    if command is not None:
        config["command"] = command
    sweep = emulator.create_sweep(config)
    node = make_node(sweep, "--slots", "1", name="bare" if bare else "node",
                     COLOUR="blue")  # fmt: skip
    seen = node.directory / "seen.json"
    env = node.environment() | {"SEEN": str(seen)}
    node.env["SEEN"] = str(seen)
    if bare:
        node.directory.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["wandb", "agent", "--count", "1", sweep], env=env, cwd=node.directory, check=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=90,
        )  # fmt: skip
    else:
        node.start()
        wait_until("the probe has looked", seen.exists, 180)
        node.ctl("stop")
        node.wait()
    found = json.loads(seen.read_text())
    seen.unlink()
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_it_equals_what_a_bare_agent_gives(
    emulator: Emulator, make_node: MakeNode, name: str
) -> None:
    command = COMMANDS[name]

    bare = look(emulator, make_node, command, bare=True)
    ours = look(emulator, make_node, command, bare=False)

    env_bare, env_ours = bare.pop("env"), ours.pop("env")
    expected = set(env_bare) | DOCUMENTED
    assert set(env_ours) == expected
    same = set(env_bare) - DIFFERENT_EACH_TIME - {"NODE", "COORDINATOR_NODE", "WANDB_SWEEP_ID",
                                                  "COORDINATOR_RUN_TEST_MARK"}  # fmt: skip
    assert {key: env_ours[key] for key in same} == {key: env_bare[key] for key in same}
    for view in (bare, ours):
        # Paths with the run and sweep in their names differ between any two runs.
        view["argv"] = [word for word in view["argv"] if "config-" not in word]
    assert ours == bare
    assert ours["group_is_own"]
    assert ours["stdin"] == ""


def test_dispositions_are_default_even_when_the_daemon_was_started_with_sigint_ignored(
    emulator: Emulator, make_node: MakeNode
) -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ours = look(emulator, make_node, None, bare=False)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert "SIGINT" not in ours["ignored"]
