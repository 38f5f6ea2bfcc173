"""Which way agents are started, why, and what happens when the quick way fails."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from coordinator.core.model import AgentStart
from coordinator.process import tree
from coordinator.process.forkserver import Forked
from coordinator.process.spawn import Child
from coordinator.supervisor import starter as starter_module
from coordinator.supervisor.starter import AgentStarter, StarterSettings
from coordinator.wandb_account.executable import NotForkableError, NoWandbError, python_of
from tests.support.fake_wandb import ENTRY, fake_wandb

pytestmark = pytest.mark.anyio

ENV = {"PATH": os.environ["PATH"], "WANDB_ERROR_REPORTING": "false"}
SCRIPT = "#!/bin/sh\necho 'Usage: wandb agent --forward-signals'\n"


@asynccontextmanager
async def starter(
    script: Path, folder: Path, mode: AgentStart = AgentStart.AUTO
) -> AsyncIterator[AgentStarter]:
    tree.become_subreaper()  # as the daemon does
    made = AgentStarter(StarterSettings(mode, str(script), ENV, folder, folder / "logs"))
    try:
        yield made
    finally:
        await made.close()


async def run(made: AgentStarter, folder: Path) -> Child:
    child = await made.start("e/p/s", env=ENV, output=folder / "out")
    with anyio.fail_after(60):
        await child.wait()
    return child


def executable(folder: Path, text: str = SCRIPT) -> Path:
    path = folder / "wandb"
    path.write_text(text)
    path.chmod(0o755)
    return path


def names(logs: Sequence[Mapping[str, object]]) -> list[object]:
    return [entry["event"] for entry in logs]


async def test_agents_are_forked_where_they_can_be(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with starter(fake_wandb(tmp_path / "site"), tmp_path) as made:
            await made.prepare()
            assert (made.forks, made.reason) == (True, "")
            assert isinstance(await run(made, tmp_path), Forked)
    assert names(logs) == ["agent_server_started"]
    assert '"--forward-signals", "e/p/s"' in (tmp_path / "out").read_text()


async def test_a_command_that_is_not_wandbs_own_script_is_started_anew(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with starter(executable(tmp_path), tmp_path) as made:
            await made.prepare()
            assert not made.forks
            assert made.reason == f"{tmp_path}/wandb is not a Python script"
            assert not isinstance(await run(made, tmp_path), Forked)
    assert names(logs) == ["agent_server_unavailable"]


async def test_exec_starts_no_server(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with starter(executable(tmp_path), tmp_path, AgentStart.EXEC) as made:
            await made.prepare()
            assert (made.forks, made.reason) == (False, '[pool] agent_start is "exec"')
            assert not isinstance(await run(made, tmp_path), Forked)
            assert made.pids == []
    assert logs == []


async def test_fork_is_refused_where_agents_cannot_be_forked(tmp_path: Path) -> None:
    async with starter(executable(tmp_path), tmp_path, AgentStart.FORK) as made:
        with pytest.raises(NotForkableError) as caught:
            await made.prepare()
    assert str(caught.value) == (
        f"[pool] agent_start: agents cannot be forked: {tmp_path}/wandb is not a Python script; "
        'use "auto"'
    )


async def test_a_trial_that_fails_is_told_with_its_own_last_words(tmp_path: Path) -> None:
    entry = "import sys\ndef cli():\n    print('no such option')\n    return 2\n"
    script = fake_wandb(tmp_path / "site", entry=entry)
    script.write_text(script.read_text() + "import sys\nsys.exit(cli())\n")
    script.chmod(0o755)
    async with starter(script, tmp_path) as made:
        with pytest.raises(NoWandbError):  # and it does not work when started anew either
            await made.prepare()
        assert made.reason == "a forked `wandb agent --help` failed: no such option"


async def test_a_killed_server_is_replaced_and_the_agent_is_forked(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with starter(fake_wandb(tmp_path / "site"), tmp_path) as made:
            await made.prepare()
            (before,) = made.pids
            os.kill(before, signal.SIGKILL)
            assert isinstance(await run(made, tmp_path), Forked)
            (after,) = made.pids
            assert after != before
    assert names(logs) == ["agent_server_started", "agent_server_lost", "agent_server_started"]


async def test_an_upgraded_wandb_is_imported_anew_with_its_new_options(tmp_path: Path) -> None:
    old = ENTRY.replace(" --forward-signals", "")
    with capture_logs() as logs:
        async with starter(fake_wandb(tmp_path / "site", entry=old), tmp_path) as made:
            await made.prepare()
            await run(made, tmp_path)
            assert "--forward-signals" not in (tmp_path / "out").read_text()
            (tmp_path / "site" / "wandb" / "cli" / "cli.py").write_text(ENTRY)
            assert isinstance(await run(made, tmp_path), Forked)
            assert "--forward-signals" in (tmp_path / "out").read_text()
    assert names(logs) == ["agent_server_started", "agent_server_outdated", "agent_server_started"]


async def test_a_server_that_cannot_be_had_again_is_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = fake_wandb(tmp_path / "site")
    package = tmp_path / "site" / "wandb"
    script.write_text(script.read_text() + "import sys\nsys.exit(cli())\n")
    script.chmod(0o755)
    async with starter(script, tmp_path) as made:
        await made.prepare()
        (package / "wandb_agent.py").unlink()  # an upgrade that is half done
        assert not isinstance(await run(made, tmp_path), Forked)
        assert "cannot import name 'wandb_agent'" in made.reason
        (package / "wandb_agent.py").touch()
        assert not isinstance(await run(made, tmp_path), Forked), "not at once"
        monkeypatch.setattr(starter_module, "monotonic", lambda: float("inf"))
        assert isinstance(await run(made, tmp_path), Forked)
        assert made.reason == ""


async def test_fork_starts_no_agent_anew_when_the_server_is_lost_for_good(tmp_path: Path) -> None:
    async with starter(fake_wandb(tmp_path / "site"), tmp_path, AgentStart.FORK) as made:
        await made.prepare()
        (tmp_path / "site" / "wandb" / "wandb_agent.py").unlink()
        with pytest.raises(OSError, match="cannot import name 'wandb_agent'"):
            await made.start("e/p/s", env=ENV, output=tmp_path / "out")


async def test_many_agents_at_once_share_one_server(tmp_path: Path) -> None:
    async with starter(fake_wandb(tmp_path / "site"), tmp_path) as made:
        await made.prepare()
        (server,) = made.pids
        os.kill(server, signal.SIGKILL)
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(run, made, tmp_path)
        assert len(made.pids) == 1
        assert (tmp_path / "out").read_text().count("e/p/s") == 8


# --- the interpreter ------------------------------------------------------------------------------
IMPORT = "from wandb.cli.cli import cli\n"
LONG = f"#!/bin/sh\n'''exec' {sys.executable} \"$0\" \"$@\"\n' '''\n{IMPORT}"


@pytest.mark.parametrize(
    ("text", "python"),
    [
        (f"#!{sys.executable}\n{IMPORT}", [sys.executable]),
        (f"#! {sys.executable} -sP\n{IMPORT}", [sys.executable, "-sP"]),
        (f"#!/usr/bin/env python-here\n{IMPORT}", ["PATH/python-here"]),
        (f"#!/usr/bin/env -S python-here -s\n{IMPORT}", ["PATH/python-here", "-s"]),
        (LONG, [sys.executable]),
        (LONG.replace(sys.executable, f'"{sys.executable}"'), [sys.executable]),
    ],
)
def test_the_interpreter_is_that_of_the_script(
    text: str, python: list[str], tmp_path: Path
) -> None:
    (tmp_path / "python-here").symlink_to(sys.executable)
    found = python_of(str(executable(tmp_path, text)), {"PATH": str(tmp_path)})
    assert found == [word.replace("PATH", str(tmp_path)) for word in python]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a Python script"),
        ("\x7fELF", "is not a Python script"),
        ('#!/bin/sh\nexec python -m wandb "$@"\n', "is not a Python script"),
        (f"#!\n{IMPORT}", "is not a Python script"),
        (f"#!/usr/bin/env\n{IMPORT}", "is not a Python script"),
        (f"#!{sys.executable}\nimport our_wandb\n", "is not the script that comes with wandb"),
        (f"#!/gone/python3\n{IMPORT}", "its interpreter /gone/python3 does not exist"),
    ],
)
def test_what_is_not_wandbs_script_is_told(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(NotForkableError) as caught:
        python_of(str(executable(tmp_path, text)), {"PATH": ""})
    assert caught.value.reason.endswith(reason)
