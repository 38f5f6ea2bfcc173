"""The batch script passes notices on once, reports the daemon's exit and requeues when it must.

Run under the real bash with the variables that SLURM sets; real processes get real signals. In the
places of coordinatord and scontrol stands recorder.py.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "coordinator.sbatch"
RECORDER = Path(__file__).with_name("recorder.py")
SWEEP = "ent/proj/swp1"


@dataclass(frozen=True, slots=True)
class Job:
    """A running batch script and what its two programs wrote down."""

    process: anyio.abc.Process
    daemon_record: Path
    scontrol_record: Path

    async def daemon(self, until: Callable[[list[Any]], bool]) -> list[Any]:
        """The daemon's record, once it satisfies `until`."""
        with anyio.fail_after(30):
            # Another process writes the file: there is no event to wait for.
            while not until(lines := await records(self.daemon_record)):  # noqa: ASYNC110
                await anyio.sleep(0.02)
        return lines

    async def started(self) -> dict[str, Any]:
        """What the daemon was started with."""
        first: dict[str, Any] = (await self.daemon(bool))[0]
        return first

    async def exit_code(self) -> int:
        """The script's own exit code."""
        with anyio.fail_after(30):
            return await self.process.wait()

    async def output(self) -> str:
        """All that the script printed, once it has ended."""
        assert self.process.stdout is not None
        return b"".join([chunk async for chunk in self.process.stdout]).decode()


async def records(file: Path) -> list[Any]:
    """The whole lines of a record that may still grow or not exist yet."""
    path = anyio.Path(file)
    text = await path.read_text() if await path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def program(path: Path, record: Path, **variables: str) -> Path:
    """An executable that runs the recorder with its own settings."""
    settings = " ".join(f"{name}='{value}'" for name, value in variables.items())
    path.write_text(
        f"#!/bin/sh\nRECORD='{record}' {settings} exec '{sys.executable}' '{RECORDER}' \"$@\"\n"
    )
    path.chmod(0o755)
    return path


@asynccontextmanager
async def job(
    tmp_path: Path, *arguments: str, env: dict[str, str] | None = None, **daemon: str
) -> AsyncIterator[Job]:
    """Run the script as SLURM would; `daemon` are the recorder's settings."""
    daemon_record, scontrol_record = tmp_path / "daemon", tmp_path / "scontrol"
    environ = {
        "PATH": os.environ["PATH"],
        "COORDINATORD": str(program(tmp_path / "coordinatord", daemon_record, **daemon)),
        "SCONTROL": str(program(tmp_path / "requeue", scontrol_record, RECORD_WAIT="no")),
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "SLURM_JOB_ID": "4711",
        "TMPDIR": str(tmp_path),
        **(env or {}),
    }
    process = await anyio.open_process(
        ["bash", str(SCRIPT), *(arguments or (SWEEP,))], env=environ, stderr=subprocess.STDOUT
    )
    running = Job(process, daemon_record, scontrol_record)
    try:
        yield running
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            await end(running)


async def end(running: Job) -> None:
    """End what a failed test left: the daemon first, then the script follows."""
    if running.process.returncode is None:
        for record in (await records(running.daemon_record))[:1]:
            os.kill(record["pid"], signal.SIGUSR2)
        await running.process.wait()
    await running.process.aclose()


def signals_in(lines: list[Any]) -> list[str]:
    """The names of the recorded signals."""
    return [line["signal"] for line in lines if "signal" in line]


async def test_the_script_is_valid_bash() -> None:
    done = await anyio.run_process(["bash", "-n", str(SCRIPT)], check=False)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_the_daemon_gets_the_sweep_and_the_options(tmp_path: Path) -> None:
    async with job(tmp_path, SWEEP, "--slots", "3", RECORD_WAIT="no") as running:
        started = await running.started()
        assert await running.exit_code() == 0
    assert started["argv"] == ["--sweep", SWEEP, "--until-done", "--slots", "3"]


async def test_the_daemon_gets_a_private_state_directory_and_a_node_name_of_its_job(
    tmp_path: Path,
) -> None:
    async with job(tmp_path, RECORD_WAIT="no") as running:
        env = (await running.started())["env"]
        await running.exit_code()
    state = anyio.Path(env["COORDINATOR_STATE_DIR"])
    modes = [(await path.stat()).st_mode & 0o777 for path in (state, state.parent)]
    assert modes == [0o700, 0o700]
    assert Path(state) == tmp_path / f"wandb-coordinator-{os.getuid()}" / "4711"
    assert env["COORDINATOR_NODE"].endswith("-4711")
    assert env["COORDINATOR_REDIS_URL"] == "redis://127.0.0.1:1/0"


async def test_every_task_of_an_array_has_its_own_state(tmp_path: Path) -> None:
    array = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "8"}
    async with job(tmp_path, env=array, RECORD_WAIT="no") as running:
        env = (await running.started())["env"]
        await running.exit_code()
    assert Path(env["COORDINATOR_STATE_DIR"]).name == "4700_8"
    assert env["COORDINATOR_NODE"].endswith("-4700_8")


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM"])
async def test_a_storm_of_notices_reaches_the_daemon_once(tmp_path: Path, name: str) -> None:
    async with job(tmp_path, RECORD_LINGER="1.5", RECORD_EXIT="75") as running:
        await running.started()
        running.process.send_signal(signal.Signals[name])
        await running.daemon(lambda lines: signals_in(lines) == [name])
        for repeated in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1):
            running.process.send_signal(repeated)
        assert await running.exit_code() == 75
        assert signals_in(await records(running.daemon_record)) == [name]


async def test_the_script_waits_for_the_daemon_after_a_notice(tmp_path: Path) -> None:
    async with job(tmp_path, RECORD_LINGER="1.0", RECORD_EXIT="3") as running:
        await running.started()
        began = anyio.current_time()
        running.process.send_signal(signal.SIGTERM)
        assert await running.exit_code() == 3
        assert anyio.current_time() - began >= 1.0


@pytest.mark.parametrize("code", [0, 1, 2, 75, 137])
async def test_the_exit_code_of_the_daemon_is_passed_on(tmp_path: Path, code: int) -> None:
    async with job(tmp_path, RECORD_WAIT="no", RECORD_EXIT=str(code)) as running:
        assert await running.exit_code() == code
        assert f"the coordinator exited with {code}" in await running.output()


async def test_a_daemon_that_is_missing_fails_the_job(tmp_path: Path) -> None:
    async with job(tmp_path, env={"COORDINATORD": str(tmp_path / "none")}) as running:
        assert await running.exit_code() == 127


async def test_a_preemption_by_the_time_limit_requeues_the_job(tmp_path: Path) -> None:
    async with job(tmp_path, RECORD_EXIT="75") as running:
        await running.started()
        running.process.send_signal(signal.SIGUSR1)
        assert await running.exit_code() == 75
        (requeued,) = await records(running.scontrol_record)
    assert requeued["argv"] == ["requeue", "4711"]


async def test_a_task_of_an_array_requeues_itself_alone(tmp_path: Path) -> None:
    array = {"SLURM_JOB_ID": "4700", "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "8"}
    async with job(tmp_path, env=array, RECORD_EXIT="75") as running:
        await running.started()
        running.process.send_signal(signal.SIGUSR1)
        assert await running.exit_code() == 75
        (requeued,) = await records(running.scontrol_record)
    assert requeued["argv"] == ["requeue", "4700_8"]


@pytest.mark.parametrize(
    ("notice", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 0), (signal.SIGUSR1, 1), (None, 75)]
)
async def test_no_other_end_requeues_the_job(
    tmp_path: Path, notice: signal.Signals | None, code: int
) -> None:
    wait = "yes" if notice else "no"
    async with job(tmp_path, RECORD_EXIT=str(code), RECORD_WAIT=wait) as running:
        await running.started()
        if notice:
            running.process.send_signal(notice)
        assert await running.exit_code() == code
        assert await records(running.scontrol_record) == []


async def test_a_job_without_a_shared_redis_is_refused(tmp_path: Path) -> None:
    async with job(tmp_path, env={"REDIS_URL": ""}) as running:
        assert await running.exit_code() != 0
        assert "set REDIS_URL" in await running.output()
        assert await records(running.daemon_record) == []
