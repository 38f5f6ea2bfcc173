"""Control groups and OOM kills of the real kernel.

What the machine does not offer (no root, no control groups) is skipped with its reason.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from coordinator.process import tree
from coordinator.process.kernel import Kernel, delegated_group, oom_victims
from tests.support.cgroups import frozen_file_system, memory_group, unified_mount
from tests.support.emulator import wait_until

SECONDS = 30.0
JOIN = "import os,sys; open(sys.argv[1] + '/cgroup.procs', 'w').write('0'); "
FAMILY = """
import subprocess, time
subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL)
print(1, flush=True)
time.sleep(600)
"""
GOBBLE = "bytearray(1 << 30)"


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A control group as systemd delegates it."""
    group = unified_mount() / f"wandb-coordinator-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        os.setxattr(group, "user.delegate", b"1")
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield group
    for inner in [*group.glob("*/"), group]:
        with suppress(OSError):
            inner.rmdir()


def in_group(group: Path, code: str, *arguments: str) -> "subprocess.Popen[str]":  # noqa: TID251
    """A Python program that begins by joining a control group."""
    return subprocess.Popen(  # noqa: TID251 - the tests end it themselves
        [sys.executable, "-c", JOIN + code, str(group), *arguments], stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def found_from(group: Path) -> str:
    """What a daemon that was started in this group takes for its own."""
    code = "from coordinator.process.kernel import delegated_group as d; print(d())"
    output, _ = in_group(group, code).communicate(timeout=SECONDS)
    return output.strip()


def test_only_a_delegated_group_is_ours_to_divide(delegated: Path) -> None:
    assert found_from(delegated) == str(delegated)

    os.removexattr(delegated, "user.delegate")

    assert found_from(delegated) == "None"
    assert delegated_group(Path("/nonexistent")) is None


def test_a_daemon_in_a_subgroup_of_the_unit_finds_the_unit(delegated: Path) -> None:
    (delegated / "daemon").mkdir()

    assert found_from(delegated / "daemon") == str(delegated)


def test_a_group_lists_its_processes_and_kills_them_at_once(delegated: Path) -> None:
    kernel = Kernel(delegated)
    group = kernel.enclose("c1")
    assert group == kernel.enclose("c1")
    family = in_group(Path(group), FAMILY)
    assert family.stdout is not None
    family.stdout.readline()

    assert len(kernel.members("c1")) == 2
    assert family.pid in kernel.members("c1")
    kernel.kill("c1")

    assert family.wait(SECONDS) == -signal.SIGKILL
    family.stdout.close()
    wait_until("the group is empty", lambda: not kernel.members("c1"), SECONDS)
    kernel.release("c1")
    assert not Path(group).exists()


def test_without_a_group_of_ours_nothing_is_enclosed_or_hit() -> None:
    kernel = Kernel()
    assert kernel.enclose("c1") == ""
    assert kernel.members("c1") == []
    kernel.kill("c1")
    kernel.release("c1")


def test_a_group_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    assert Kernel(tmp_path / "gone").enclose("c1") == ""


def test_a_real_oom_kill_is_known_for_a_moment_and_only_for_its_victim() -> None:
    kernel = Kernel()
    kernel.sample()
    with memory_group(64 << 20) as group:
        gobbler = in_group(group, GOBBLE)
        gobbler.communicate(timeout=SECONDS)
    assert gobbler.returncode == -signal.SIGKILL
    pid = gobbler.pid

    assert kernel.out_of_memory("c1", signal.SIGKILL, pid)
    assert not kernel.out_of_memory("c1", signal.SIGSEGV, pid)
    assert not kernel.out_of_memory("c1", None, pid)
    if oom_victims() is not None:
        assert not kernel.out_of_memory("c1", signal.SIGKILL, os.getpid()), "somebody else's end"


def test_without_the_kernels_log_its_count_tells_for_a_moment(tmp_path: Path) -> None:
    count = tmp_path / "vmstat"
    count.write_text("pgfault 5\noom_kill 3\n")
    kernel = Kernel(proc=tmp_path)
    kernel.sample()
    assert not kernel.out_of_memory("c1", signal.SIGKILL, 1)
    count.write_text("pgfault 6\noom_kill 4\n")
    assert kernel.out_of_memory("c1", signal.SIGKILL, 1)
    assert not kernel.out_of_memory("c1", signal.SIGSEGV, 1)
    kernel.sample()
    assert kernel.out_of_memory("c1", signal.SIGKILL, 1)
    kernel.sample()
    assert not kernel.out_of_memory("c1", signal.SIGKILL, 1), "it proves nothing any more"


def test_a_log_that_may_not_be_read_or_is_another_namespaces_tells_nothing(tmp_path: Path) -> None:
    assert oom_victims(log=tmp_path / "absent") is None
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").touch()
    assert oom_victims(tmp_path) is None


def test_the_count_of_the_trainings_own_group_is_exact(tmp_path: Path) -> None:
    """The form of the file is that of cgroup-v2.rst; few machines count for version 2 in a test."""
    group = tmp_path / "run-c1"
    group.mkdir()
    events = group / "memory.events"
    events.write_text("low 0\nhigh 0\nmax 31\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert not Kernel(tmp_path).out_of_memory("c1", signal.SIGKILL, 1)
    events.write_text("low 0\nhigh 0\nmax 31\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert Kernel(tmp_path).out_of_memory("c1", None, 1), (
        "a worker's end can be the main one's exit 1"
    )


@pytest.mark.anyio
async def test_a_process_that_cannot_be_killed_is_told_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer to a frozen file system is in state D: SIGKILL waits until it is thawed."""
    monkeypatch.setattr(tree, "STUCK_SECONDS", 0.3)
    told: list[list[int]] = []
    with frozen_file_system(tmp_path) as thaw:
        writer = subprocess.Popen(["touch", str(tmp_path / "mount/file")])  # noqa: TID251, ASYNC220
        wait_until("it hangs", lambda: tree.state_of(writer.pid) == "D", SECONDS)

        def find() -> list[int]:
            return [writer.pid] if tree.state_of(writer.pid) not in ("", "Z") else []

        async with anyio.create_task_group() as group:
            group.start_soon(tree.kill_all, find, told.append)
            with anyio.fail_after(SECONDS):
                while not told:  # noqa: ASYNC110 - told by a plain callback
                    await anyio.sleep(0.02)
            assert tree.state_of(writer.pid) == "D"
            await anyio.to_thread.run_sync(thaw)
        assert writer.wait(SECONDS) == -signal.SIGKILL
    assert told == [[writer.pid]]
