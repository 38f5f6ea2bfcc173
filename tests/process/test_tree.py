"""Process trees are found and ended also when their root is gone."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import anyio
import pytest

from coordinator.process import tree
from tests.process.test_spawn import ACTORS, ENV, SECONDS, state, until
from tests.support.emulator import wait_until

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Family:
    """A process in a session of its own with all kinds of descendants, as pids."""

    claim: str
    process: "subprocess.Popen[str]"  # noqa: TID251
    root: int
    child: int
    other_group: int
    stopped: int
    escaped: int

    @property
    def all(self) -> set[int]:
        return {self.root, self.child, self.other_group, self.stopped, self.escaped}


def start(claim: str | None) -> Family:
    mark = uuid.uuid4().hex if claim is None else claim
    env = ENV if claim is None else ENV | {tree.CLAIM_VARIABLE: claim}
    process = subprocess.Popen(  # noqa: TID251 - the tests end it themselves
        [sys.executable, str(ACTORS), "family"], stdout=subprocess.PIPE, text=True, env=env,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    return Family(mark, process, *pids)


def end(family: Family) -> None:
    for pid in family.all - {family.root}:
        if state(pid) not in ("", "Z"):
            os.kill(pid, signal.SIGKILL)
    family.process.kill()
    family.process.communicate()


@pytest.fixture
def family() -> Iterator[Family]:
    """One whose processes carry a claim."""
    found = start(uuid.uuid4().hex)
    yield found
    end(found)


@pytest.fixture
def unmarked() -> Iterator[Family]:
    """One whose processes carry none, as those that clear their environment."""
    found = start(None)
    yield found
    end(found)


async def test_every_process_of_a_claim_is_found_wherever_it_went(family: Family) -> None:
    assert set(tree.of_claim(family.claim)) == family.all


async def test_processes_of_another_claim_are_not_found(family: Family) -> None:
    assert tree.of_claim(family.claim[:-1]) == []
    assert tree.of_claim(uuid.uuid4().hex) == []


async def test_a_process_is_found_by_its_claim_after_its_ancestors_are_gone(
    family: Family,
) -> None:
    for pid in family.all - {family.escaped}:
        os.kill(pid, signal.SIGKILL)
    family.process.wait()
    await until(
        "only the escaped one is left", lambda: tree.of_claim(family.claim) == [family.escaped]
    )


async def test_the_agents_session_counts_outside_the_agents_own_group(unmarked: Family) -> None:
    """The agent and its wandb-core are not the training; what the agent started in a group is."""
    found = tree.of_claim(unmarked.claim, session=unmarked.root)
    assert found == [unmarked.other_group]


async def test_a_session_is_all_that_has_not_left_it(family: Family) -> None:
    assert set(tree.in_session(family.root)) == family.all - {family.escaped}


async def test_the_whole_tree_is_killed_and_counted(family: Family) -> None:
    with anyio.fail_after(SECONDS):
        killed = await tree.kill_all(lambda: tree.of_claim(family.claim))
    assert killed == 5
    assert all(state(pid) in ("", "Z") for pid in family.all)


async def test_a_process_that_came_after_the_first_look_is_killed_too(family: Family) -> None:
    """As when one forks while the others are being killed."""
    looks = 0

    def find() -> list[int]:
        nonlocal looks
        looks += 1
        hidden = {family.escaped} if looks == 1 else set()
        return [pid for pid in tree.of_claim(family.claim) if pid not in hidden]

    with anyio.fail_after(SECONDS):
        assert await tree.kill_all(find) == 5
    assert state(family.escaped) in ("", "Z")


async def test_nothing_to_kill_is_no_failure_and_a_process_that_just_ended_none_either() -> None:
    async with await anyio.open_process(["true"]) as ended:
        await ended.wait()
    answers = [[ended.pid], []]
    assert await tree.kill_all(list) == 0
    assert await tree.kill_all(lambda: answers.pop(0)) == 1


def test_the_dead_that_nobody_has_collected_are_not_counted_as_living() -> None:
    zombie = subprocess.Popen(["true"], start_new_session=True)  # noqa: TID251
    wait_until("it is a zombie", lambda: state(zombie.pid) == "Z", SECONDS)
    assert tree.in_session(zombie.pid) == []
    assert tree.of_claim(uuid.uuid4().hex, session=zombie.pid) == []
    zombie.wait()


def test_orphans_are_collected_and_the_children_of_others_are_left_to_them() -> None:
    done = subprocess.run(
        [sys.executable, str(ACTORS), "reaper"], env=ENV, capture_output=True, text=True,
        timeout=SECONDS, check=True,
    )  # fmt: skip
    assert done.stdout.split(maxsplit=3) == ["True", "7", "None", "[]\n"]
