"""The wandb command is found as configured, and is asked what it can do."""

import os
import sys
from pathlib import Path

import pytest

from coordinator.errors import UserError
from coordinator.wandb_account.executable import AgentCommand, NoWandbError, find, probe

pytestmark = pytest.mark.anyio

INSTALLED = Path(sys.executable).with_name("wandb")
OLD_VARIABLE = "COORDINATOR_TEST_OLD_WANDB"
"""Path of a wandb command before 0.24, for the test that needs one."""


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def environ(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "WANDB_ERROR_REPORTING": "false"}


# --- finding --------------------------------------------------------------------------------------
def test_the_configured_command_is_taken_whatever_is_on_the_path(tmp_path: Path) -> None:
    ours = program(tmp_path / "ours" / "wandb", "")
    other = program(tmp_path / "bin" / "wandb", "")
    assert find(str(ours), {"PATH": str(other.parent)}) == str(ours)


def test_a_configured_name_is_looked_up_on_the_path(tmp_path: Path) -> None:
    path = program(tmp_path / "bin" / "wandb-old", "")
    assert find("wandb-old", {"PATH": str(path.parent)}) == str(path)


def test_without_configuration_the_path_is_searched_then_the_folder_of_this_python(
    tmp_path: Path,
) -> None:
    path = program(tmp_path / "bin" / "wandb", "")
    assert find("", {"PATH": str(path.parent)}) == str(path)
    assert find("", {"PATH": str(tmp_path / "absent")}) == str(INSTALLED)


@pytest.mark.parametrize("name", ["absent", "plain", "folder"])
def test_what_cannot_be_executed_is_refused_by_the_name_of_its_key(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "plain").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(NoWandbError) as caught:
        find(str(tmp_path / name), {"PATH": ""})
    assert isinstance(caught.value, UserError)
    assert str(caught.value).startswith(f"[sweep] wandb: {tmp_path / name}: ")


# --- asking ---------------------------------------------------------------------------------------
async def test_the_installed_wandb_forwards_signals_and_is_told_to(tmp_path: Path) -> None:
    command = await probe(str(INSTALLED), environ(tmp_path), tmp_path)
    assert command == AgentCommand(executable=str(INSTALLED), forward_signals=True)
    assert command.argv("e/p/s") == [
        str(INSTALLED), "agent", "--count", "1", "--forward-signals", "e/p/s",
    ]  # fmt: skip


async def test_an_old_wandb_is_not_given_an_option_that_it_refuses(tmp_path: Path) -> None:
    old = program(tmp_path / "wandb", 'echo "Usage: wandb agent [OPTIONS] SWEEP_ID"')
    command = await probe(str(old), environ(tmp_path), tmp_path)
    assert command.argv("e/p/s") == [str(old), "agent", "--count", "1", "e/p/s"]


@pytest.mark.skipif(OLD_VARIABLE not in os.environ, reason=f"${OLD_VARIABLE} names no old wandb")
async def test_a_real_old_wandb_has_no_such_option(tmp_path: Path) -> None:
    command = await probe(os.environ[OLD_VARIABLE], environ(tmp_path), tmp_path)
    assert not command.forward_signals


async def test_a_wandb_that_does_not_work_is_reported_with_its_last_line(tmp_path: Path) -> None:
    broken = program(
        tmp_path / "wandb", "echo Traceback >&2; echo 'ImportError: no yaml' >&2; exit 1"
    )
    with pytest.raises(NoWandbError) as caught:
        await probe(str(broken), environ(tmp_path), tmp_path)
    assert "`agent --help` failed: ImportError: no yaml;" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_wandb_that_fails_without_output_is_still_reported(tmp_path: Path) -> None:
    broken = program(tmp_path / "wandb", "kill -9 $$")
    with pytest.raises(NoWandbError, match="no output"):
        await probe(str(broken), environ(tmp_path), tmp_path)


async def test_a_wandb_that_is_not_executable_is_refused(tmp_path: Path) -> None:
    odd = tmp_path / "wandb"
    odd.write_bytes(b"\x7fELF no program")
    odd.chmod(0o755)
    with pytest.raises(NoWandbError) as caught:
        await probe(str(odd), environ(tmp_path), tmp_path)
    assert "\n" not in str(caught.value)


async def test_a_wandb_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.wandb_account.executable.PROBE_SECONDS", 0.1)
    stuck = program(tmp_path / "wandb", "exec sleep 600")
    with pytest.raises(NoWandbError, match="did not answer"):
        await probe(str(stuck), environ(tmp_path), tmp_path)
