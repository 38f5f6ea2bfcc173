"""Real launchers and frameworks under a real daemon, with the scripts that docs/training.md shows.

They need an environment of 1.2 GB, made once in one to three minutes; each takes half a minute, or
two on a busy machine.
"""

import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks
from tests.support.emulator import Emulator, wait_until
from tests.support.installations import frameworks_python
from tests.support.long import long_play
from tests.support.node import Node
from tests.support.redis import free_port

pytestmark = long_play
MakeNode = Callable[..., Node]
STEPS = 150
LEAN = ("--slots", "1", "--redis-url", "embedded", "--set", "pool.warm_agents=0")


@dataclass(frozen=True, slots=True)
class Case:
    """What a sweep starts, and which of the documented scripts it trains with."""

    preset: str
    script: str
    launcher: tuple[str, ...] = ("python",)
    devices: int | None = None
    notice: signal.Signals = signal.SIGTERM
    asked: int = 1
    """Processes that get a signal of ours."""


TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")
ACCELERATE = (
    "accelerate",
    "launch",
    "--num_processes=2",
    "--multi_gpu",
    "--main_process_port=PORT",
)
ACCELERATE_ONE = ("accelerate", "launch", "--cpu", "--num_processes=1")
DEEPSPEED = ("deepspeed", "--num_gpus=2", "--no_local_rank", "--master_port=PORT")
CASES = {
    "torchrun": Case("torchrun", "ddp.py", TORCHRUN),
    "torchrun with another notice": Case("torchrun", "ddp.py", TORCHRUN, notice=signal.SIGUSR1),
    "accelerate": Case("accelerate", "ddp.py", ACCELERATE, asked=2),
    "accelerate with one process": Case("accelerate", "saves.py", ACCELERATE_ONE),
    "deepspeed": Case("deepspeed", "ddp.py", DEEPSPEED, asked=2),
    "lightning": Case("lightning", "lightning_saves.py"),
    "lightning with two ranks": Case("lightning", "lightning_saves.py", devices=2),
}  # fmt: skip


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of python, torchrun and so on; skipped where it cannot be made."""
    try:
        return frameworks_python().parent
    except OSError as error:
        pytest.skip(str(error))


@pytest.fixture
def sweep(
    request: pytest.FixtureRequest, programs: Path, emulator: Emulator, tmp_path: Path
) -> str:
    """One run of the case's script under its launcher."""
    case: Case = request.getfixturevalue("case")
    script = tmp_path / case.script
    script.write_text(blocks("training.md", "run")[case.script])
    port = str(free_port())
    program, *words = [word.replace("PORT", port) for word in case.launcher]
    parameters: dict[str, Any] = {"lr": {"values": [0.1]}, "steps": {"value": STEPS}}
    if case.devices:
        parameters["devices"] = {"value": case.devices}
    return emulator.create_sweep(
        {
            "program": str(script),
            "method": "grid",
            "parameters": parameters,
            "command": [str(programs / program), *words, "${program}", "${args}"],
        }
    )


def preempt(node: Node, notice: signal.Signals) -> None:
    """Wait until the training is at work, and have it preempted."""
    wait_until("the training begins", lambda: "begins after step" in node.said(), 120)
    node.send(notice)
    assert node.wait() == 75, node.tail()
    assert not node.processes()


def the_only_run(node: Node) -> dict[str, Any]:
    (run,) = node.emulator.state()["runs"].values()
    return dict(run)


def begun(node: Node) -> set[int]:
    return {int(step) for step in re.findall(r"begins after step (\d+)\.", node.said())}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_with_its_preset_it_saves_and_continues_elsewhere(
    case: Case, sweep: str, make_node: MakeNode
) -> None:
    flags = (*LEAN, "--set", f"preemption.preset={case.preset}")
    a = make_node(sweep, *flags, DS_ACCELERATOR="cpu").start()
    preempt(a, case.notice)

    saved = {int(step) for step in re.findall(r"saved after step (\d+)\.", a.said())}
    assert [view["outcome"] for view in a.history()] == ["preempted"], a.said()
    assert len(saved) == 1
    assert 0 < min(saved) < STEPS
    assert the_only_run(a)["state"] == "preempted"
    assert len({event["pid"] for event in a.events("signal_sent")}) == case.asked
    assert len(a.events("signal_sent")) == case.asked

    b = make_node(sweep, *flags, "--until-done", name="b", DS_ACCELERATOR="cpu").start()
    assert b.wait() == 0, b.tail()
    assert begun(b) == saved
    assert the_only_run(b)["state"] == "finished"
    assert not b.processes()


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        (Case("python", "saves.py", ACCELERATE_ONE), "interrupted"),
        (Case("python", "lightning_saves.py"), "preempt_lost"),
        (Case("python", "ddp.py", TORCHRUN, notice=signal.SIGUSR1), "interrupted"),
    ],
    ids=["accelerate dies", "lightning exits 0", "torchrun dies of SIGUSR1"],
)
def test_without_it_nothing_is_saved(
    case: Case, outcome: str, sweep: str, make_node: MakeNode
) -> None:
    node = make_node(sweep, *LEAN, "--set", "pool.linger_seconds=2").start()
    preempt(node, case.notice)
    assert [view["outcome"] for view in node.history()] == [outcome]
    assert "saved after step" not in node.said()
