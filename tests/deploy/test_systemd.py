"""The unit and its two companions pass systemd's own judgement, and their numbers fit together."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.config import Config

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "wandb-coordinator.service"
PROGRAM = "/opt/wandb-coordinator/bin/coordinatord"
MOST_EXPOSURE = 4.6
"""Of 10; what is left open (devices, namespaces, address families, W^X) trainings need."""


def tool(name: str) -> str:
    """The path of a systemd tool; skips the test where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever that is."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A copy of the unit whose program exists on this machine."""
    copy = tmp_path / UNIT.name
    text = UNIT.read_text()
    assert PROGRAM in text
    copy.write_text(text.replace(PROGRAM, sys.executable))
    return copy


def setting(name: str) -> str:
    """The one value of a setting of the unit."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert isinstance(value, str)
    return value


def test_systemd_accepts_every_line_of_the_unit(unit: Path) -> None:
    done = run(tool("systemd-analyze"), "verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_notices_a_wrong_line(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("WatchdogSec=30", "WatchdogSecs=30"))
    assert "WatchdogSecs" in run(tool("systemd-analyze"), "verify", str(unit)).stderr


def test_the_exposure_stays_below_the_threshold(unit: Path) -> None:
    done = run(tool("systemd-analyze"), "security", "--offline=true", "--no-pager", str(unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot judge a unit offline")
    level = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert level is not None, done.stderr
    assert float(level[1]) <= MOST_EXPOSURE


def test_stopping_leaves_time_for_a_whole_preemption() -> None:
    config = Config()
    preemption = config.preemption.grace_seconds + config.pool.linger_seconds
    releases = 10 * config.redis.timeout_seconds
    assert float(setting("TimeoutStopSec")) >= preemption + releases + 30


def test_a_restarted_daemon_renews_before_its_leases_run_out() -> None:
    config = Config()
    assert float(setting("RestartSec")) + config.redis.renew_seconds < config.redis.ttl_seconds


def test_systemd_signals_the_daemon_alone() -> None:
    assert setting("KillMode") == "process"
    assert setting("NotifyAccess") == "main"


@pytest.mark.parametrize(
    "name",
    [
        "PrivateTmp",
        "PrivateDevices",
        "ProtectClock",
        "DevicePolicy",
        "MemoryDenyWriteExecute",
        "OOMScoreAdjust",
    ],
)
def test_the_unit_leaves_out_what_would_break_trainings(name: str) -> None:
    assert not re.search(rf"^{name}=", UNIT.read_text(), re.MULTILINE)


def test_account_and_directories_come_out_as_the_unit_needs_them(tmp_path: Path) -> None:
    sysusers, tmpfiles = tool("systemd-sysusers"), tool("systemd-tmpfiles")
    if os.geteuid() != 0:
        pytest.skip("making accounts and directories in another root needs root")
    secret = tmp_path / "etc" / "wandb-coordinator" / "environment"
    secret.parent.mkdir(parents=True)
    secret.write_text("WANDB_API_KEY=x\n")
    secret.chmod(0o644)
    made = run(sysusers, f"--root={tmp_path}", str(DEPLOY / "sysusers.conf"))
    assert made.returncode == 0, made.stderr
    made = run(tmpfiles, "--create", f"--root={tmp_path}", str(DEPLOY / "tmpfiles.conf"))
    assert made.returncode == 0, made.stderr
    (account,) = re.findall(
        rf"^{setting('User')}:.*$", (tmp_path / "etc" / "passwd").read_text(), re.MULTILINE
    )
    assert account.split(":")[5:] == ["/var/lib/wandb-coordinator", "/usr/sbin/nologin"]
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.parent.stat().st_mode & 0o777 == 0o755
