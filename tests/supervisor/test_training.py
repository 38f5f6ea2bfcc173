"""A training and its shim's connection: a real unix socket, the shim's side spoken by the test."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from coordinator.core.attempt import Phase
from coordinator.core.model import CommandKind, Outcome, SlotState
from coordinator.core.outcome import judge
from coordinator.core.shim_protocol import Go, KillTree, SendSignal, ShimTold
from coordinator.core.wire import TrainCommand
from coordinator.leases import Lease
from coordinator.process import tree
from coordinator.process.kernel import Kernel
from coordinator.supervisor.agent import Agent
from coordinator.supervisor.shims import ShimLink, Shims
from coordinator.supervisor.slot import Ready
from coordinator.supervisor.training import Order, Training
from tests.supervisor.node import node
from tests.supervisor.stage import until
from tests.support.cgroups import frozen_file_system

pytestmark = pytest.mark.anyio
HELLO = b'{"say":"hello","agent":"t","run_id":"r","pid":1,"child_pid":null,"argv":[],"cwd":"/"}\n'
_told = msgspec.json.Decoder(ShimTold)


class ShimSide:
    """What a shim would see and say."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._lines = BufferedByteReceiveStream(stream)

    async def hear(self) -> ShimTold:
        with anyio.fail_after(20):
            return _told.decode(await self._lines.receive_until(b"\n", 65536))

    async def close(self) -> None:
        await self._stream.aclose()

    async def say(self, line: bytes) -> None:
        await self._stream.send(line + b"\n")


async def connected(shims: Shims, hello: bytes = HELLO) -> tuple[ShimLink, ShimSide]:
    """A link as the daemon has it, and its other end."""
    links: list[ShimLink] = []

    async def expect() -> None:
        links.append(await shims.expect("t", "r"))

    async with anyio.create_task_group() as group:
        group.start_soon(expect)
        await anyio.wait_all_tasks_blocked()
        stream = await anyio.connect_unix(shims.path)
        await stream.send(hello)
    return links[0], ShimSide(stream)


def training(tmp_path: Path, *worker_variables: str) -> Training:
    async def closing(_token: str) -> None:
        """Nobody waits for the lease here."""

    command = TrainCommand(CommandKind.RUN, "r", "train.py", {}, {})
    lease = Lease("r", CommandKind.RUN, "token", 1, 0)
    return Training(0, command, lease, Agent(1, "t", tmp_path / "out"), claim="no-such-claim",
                    began="", closing=closing, kernel=Kernel(),
                    worker_variables=frozenset(worker_variables))  # fmt: skip


async def test_a_notice_before_the_word_to_start_is_sent_after_it(tmp_path: Path) -> None:
    shims = Shims(tmp_path / "s.sock")
    subject = training(tmp_path)
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        link, shim = await connected(shims)
        subject.preempt(signal.SIGTERM, 60.0)
        group.start_soon(subject.run, link, Order({}, 1.0, tmp_path / "exit"))

        assert isinstance(await shim.hear(), Go)
        assert await shim.hear() == SendSignal(signal.SIGTERM, preempt=True)
        await shim.say(b'{"say":"started","pid":4194304}')
        await shim.say(b'{"say":"exited","status":36608}')
        await shim.say(b'{"say":"tree_gone","killed":0}')
        with anyio.fail_after(20):
            while not subject.attempt.exited:
                await subject.changed.wait()
        await shim.close()
        group.cancel_scope.cancel()

    assert subject.ending(None).exit_code == 143
    assert subject.ending(None).preempted


async def test_many_senders_at_once_keep_their_order(tmp_path: Path) -> None:
    shims = Shims(tmp_path / "s.sock")
    numbers = list(range(1, 31))
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        link, shim = await connected(shims)
        async with anyio.create_task_group() as senders:
            for number in numbers:
                senders.start_soon(link.send, SendSignal(number, once=False))
            senders.start_soon(link.send, KillTree())

        heard = [await shim.hear() for _ in [*numbers, "kill"]]
        await shim.close()
        group.cancel_scope.cancel()

    assert heard == [*(SendSignal(number, once=False) for number in numbers), KillTree()]


@pytest.mark.parametrize(
    ("told", "outcome"), [("preempt", Outcome.INTERRUPTED), ("kill", Outcome.INTERRUPTED),
                          ("", Outcome.CRASHED)]
)  # fmt: skip
async def test_an_adopted_training_that_had_been_told_to_end_ends_by_that(
    told: str, outcome: Outcome, tmp_path: Path
) -> None:
    """Its daemon was killed between the signal and the end."""
    shims = Shims(tmp_path / "s.sock")
    subject = training(tmp_path)
    hello = {**msgspec.json.decode(HELLO), "child_pid": 4194304, "told_to_end": told}
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        link, shim = await connected(shims, msgspec.json.encode(hello) + b"\n")
        group.start_soon(subject.go_on, link, 0.0)
        if told:  # the grace begins anew; here it is nothing
            assert await shim.hear() == KillTree()
        await shim.say(b'{"say":"exited","status":9}')
        await shim.say(b'{"say":"tree_gone","killed":0}')
        await within(lambda: subject.attempt.phase is Phase.GONE)
        await shim.close()
        group.cancel_scope.cancel()

    assert judge(subject.ending("CRASHED"))[0] is outcome


async def test_a_shim_of_a_training_to_be_adopted_may_come_before_its_slot_expects_it(
    tmp_path: Path,
) -> None:
    """A refused shim kills its training."""
    shims = Shims(tmp_path / "s.sock")
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        shims.announce("t", "r")
        stream = await anyio.connect_unix(shims.path)
        await stream.send(HELLO)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            link = await shims.expect("t", "r")
        assert link.hello.run_id == "r"
        link.closed.set()
        await stream.aclose()
        group.cancel_scope.cancel()


async def test_an_end_that_a_killed_shim_could_only_write_down_is_known(tmp_path: Path) -> None:
    async with node(tmp_path) as here:
        services = here.pool.services
        slot, lease = await here.leased(0, "r")
        link, shim = await connected(services.shims)
        ended: list[Training] = []
        slot._services = replace(services, ended=ended.append)
        command = TrainCommand(CommandKind.RUN, "r", "train.py", {}, {})
        ready = Ready(command, lease, Agent(1, "t", tmp_path / "out"), link)
        here.group.start_soon(slot._train, ready)
        go = await shim.hear()
        assert isinstance(go, Go)
        await shim.say(b'{"say":"started","pid":4194304}')
        await anyio.Path(go.exit_file).write_bytes(b'{"status": 768, "pid": 4194304}')
        await shim.close()
        await within(lambda: bool(ended))

    assert judge(ended[0].ending(None)) == (Outcome.FAILED, "its own exit code")


async def test_workers_are_asked_and_not_their_launcher(tmp_path: Path) -> None:
    async with launched(tmp_path, "LOCAL_RANK=0 sleep 600; exec sleep 601") as (it, subject, shim):
        subject.preempt(signal.SIGTERM, 60.0)

        await until("the worker has died of it", lambda: command_line(it.pid) == "sleep 601")
        subject.send(signal.SIGUSR1, once=False)
        assert await shim.hear() == SendSignal(0, preempt=True), "it only takes note"
        assert await shim.hear() == SendSignal(signal.SIGUSR1, once=False)


async def test_a_launcher_that_has_no_worker_yet_is_asked_itself(tmp_path: Path) -> None:
    async with launched(tmp_path, "sleep 600; exec sleep 601") as (_it, subject, shim):
        subject.preempt(signal.SIGTERM, 60.0)

        assert await shim.hear() == SendSignal(0, preempt=True)
        assert await shim.hear() == SendSignal(signal.SIGTERM, once=True)


@asynccontextmanager
async def launched(
    folder: Path, script: str
) -> AsyncIterator[tuple["subprocess.Popen[bytes]", Training, ShimSide]]:  # noqa: TID251
    """A training of which the shell script is the launcher, with its first child running."""
    shims = Shims(folder / "s.sock")
    subject = training(folder, "LOCAL_RANK")
    it = subprocess.Popen(["sh", "-c", script], start_new_session=True)  # noqa: TID251, ASYNC220
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        link, shim = await connected(shims)
        group.start_soon(subject.run, link, Order({}, 1.0, folder / "exit"))
        assert isinstance(await shim.hear(), Go)
        await shim.say(b'{"say":"started","pid":%d}' % it.pid)
        await within(lambda: subject.attempt.pid is not None)
        await until("its child runs", lambda: "sleep 600" in map(command_line, children(it.pid)))
        try:
            yield it, subject, shim
        finally:
            os.killpg(it.pid, signal.SIGKILL)
            it.wait()
        await shim.say(b'{"say":"tree_gone","killed":0}')
        await within(lambda: subject.attempt.phase is Phase.GONE)
        await shim.close()
        group.cancel_scope.cancel()


def children(pid: int) -> list[int]:
    return [seen.pid for seen in tree.processes() if seen.parent == pid]


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""


async def test_a_frozen_training_is_woken_for_its_notice(tmp_path: Path) -> None:
    """SIGTERM waits for as long as a process is stopped, and so would the save."""
    shims = Shims(tmp_path / "s.sock")
    subject = training(tmp_path)
    it = subprocess.Popen(["sleep", "600"])  # noqa: TID251, ASYNC220
    async with anyio.create_task_group() as group:
        await group.start(shims.run)
        link, shim = await connected(shims)
        group.start_soon(subject.run, link, Order({}, 1.0, tmp_path / "exit"))
        assert isinstance(await shim.hear(), Go)
        await shim.say(b'{"say":"started","pid":%d}' % it.pid)
        await within(lambda: subject.attempt.pid is not None)
        it.send_signal(signal.SIGSTOP)
        await until("it is stopped", lambda: tree.state_of(it.pid) == "T")
        await subject.look()
        assert subject.attempt.stopped

        subject.preempt(signal.SIGTERM, 60.0)

        assert await shim.hear() == SendSignal(signal.SIGTERM, preempt=True)
        assert await shim.hear() == SendSignal(signal.SIGCONT, once=True)
        it.send_signal(signal.SIGCONT)
        await until("it goes on", lambda: tree.state_of(it.pid) == "S")
        await subject.look()
        assert [subject.attempt.stopped] == [False]
        await shim.say(b'{"say":"tree_gone","killed":0}')
        await within(lambda: subject.attempt.phase is Phase.GONE)
        await shim.close()
        group.cancel_scope.cancel()
    it.kill()
    it.wait()


async def test_a_slot_is_dirty_while_a_process_of_it_cannot_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "STUCK_SECONDS", 0.3)
    with frozen_file_system(tmp_path) as thaw:
        async with node(tmp_path) as here:
            shim = await here.train(0, "r1")
            env = os.environ | {tree.CLAIM_VARIABLE: shim.training.claim}
            write = ["touch", str(tmp_path / "mount/file")]
            async with await anyio.open_process(write, env=env) as writer:
                await until("it hangs", lambda: tree.state_of(writer.pid) == "D")
                await shim.stream.aclose()
                slot = here.pool.slots[0]
                await within(lambda: slot.view_state() is SlotState.DIRTY)
                assert shim.training.attempt.stuck == (writer.pid,)
                here.pool.exit_code = 0
                assert here.pool._finished() == 0, "the end does not wait for it"
                await anyio.to_thread.run_sync(thaw)
                await within(lambda: not shim.training.attempt.stuck)


async def within(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():  # noqa: ASYNC110 - several things wake it
            await anyio.sleep(0.02)
