"""Asking for work: turns, the backlog, and that no command is ever lost."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from coordinator.core.wire import TrainCommand
from coordinator.gateway.desk import Reply
from coordinator.supervisor import claims as module
from coordinator.supervisor import upstream
from coordinator.supervisor.agent import AgentState
from coordinator.supervisor.claims import Claims
from coordinator.supervisor.undelivered import Undelivered
from tests.supervisor.stage import SECONDS, Server, command, guards, orders, within

pytestmark = pytest.mark.anyio

NEVER = 3600.0
SOON = 0.01
ONE, TWO, THREE = command("r1"), command("r2"), command("r3")


class Told:
    """What the claims told the rest of the daemon."""

    folder = Path()

    def __init__(self, poll_seconds: float = NEVER) -> None:
        self.ended = 0
        self.rescue: list[TrainCommand] = []
        self.guards = guards(Path())
        self.claims = Claims(poll_seconds, self._rescued, self._end, self.guards, rest=anyio.sleep,
                             kept=Undelivered(Told.folder / "undelivered.json"))  # fmt: skip

    def _end(self) -> None:
        self.ended += 1

    async def _rescued(self) -> TrainCommand | None:
        return self.rescue.pop(0) if self.rescue else None


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> None:
    Told.folder = tmp_path


def claims(poll_seconds: float = NEVER) -> Claims:
    return Told(poll_seconds).claims


# --- the backlog ----------------------------------------------------------------------------------
async def test_a_command_of_the_server_is_the_answer() -> None:
    server = Server([orders(ONE)])
    assert await within(claims().next(server.agent())) == ONE
    assert server.asked == 1


async def test_commands_that_came_together_are_handed_out_in_their_order_without_asking_again() -> (
    None
):
    server, ours = Server([orders(ONE, TWO, THREE)]), claims()
    assert [await within(ours.next(server.agent())) for _ in range(3)] == [ONE, TWO, THREE]
    assert server.asked == 1


async def test_a_command_that_was_put_back_goes_first() -> None:
    server, ours = Server([orders(ONE, TWO)]), claims()
    first = await within(ours.next(server.agent()))
    await ours.put_back(first)
    assert ours.undelivered == (ONE, TWO)
    assert await within(ours.next(server.agent())) == ONE


async def test_a_slot_that_waits_gets_what_is_put_back_at_once() -> None:
    server, ours = Server([orders()]), claims()
    got: list[TrainCommand | None] = []

    async def wait() -> None:
        got.append(await ours.next(server.agent()))

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await server.arrived.wait()
            await ours.put_back(ONE)
    assert got == [ONE]
    assert server.asked == 1


async def test_a_run_of_the_rescue_queue_goes_before_a_question_to_the_server() -> None:
    told, server = Told(), Server([orders(ONE)])
    told.rescue.append(TWO)
    assert await within(told.claims.next(server.agent())) == TWO
    assert server.asked == 0


async def test_taking_the_backlog_empties_it() -> None:
    ours = claims()
    await ours.put_back(TWO)
    await ours.put_back(ONE)
    assert ours.take_undelivered() == [ONE, TWO]
    assert ours.undelivered == ()


async def test_a_command_is_on_disk_from_its_fetching_until_it_is_known_elsewhere(
    tmp_path: Path,
) -> None:
    """A daemon that is killed in between leaves it to the next one."""

    async def on_disk() -> list[TrainCommand]:
        return await Undelivered(tmp_path / "undelivered.json").load()

    server, ours = Server([orders(ONE, TWO)]), claims()
    assert await within(ours.next(server.agent())) == ONE
    assert await on_disk() == [ONE, TWO]
    await ours.settled("r1")
    assert await on_disk() == [TWO]
    await ours.put_back(ONE)
    assert await on_disk() == [TWO, ONE]


# --- turns ----------------------------------------------------------------------------------------
async def test_idle_slots_take_turns_so_that_one_question_is_under_way_at_a_time() -> None:
    server, ours = Server([orders(ONE), orders(TWO), orders(THREE)], gate=anyio.Event()), claims()
    got: list[TrainCommand | None] = []

    async def wait(number: int) -> None:
        got.append(await ours.next(server.agent(number)))

    assert server.gate is not None
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(wait, number)
            await server.arrived.wait()
            await anyio.wait_all_tasks_blocked()
            assert server.asked == 1
            server.gate.set()
    assert got == [ONE, TWO, THREE]
    assert server.asked == 3


async def test_an_agent_that_ended_meanwhile_asks_nothing() -> None:
    server = Server([orders(ONE)])
    agent = server.agent()
    agent.state = AgentState.GONE
    assert await within(claims().next(agent)) is None
    assert server.asked == 0


async def test_the_server_is_asked_again_after_the_pause_until_it_has_work() -> None:
    server = Server([orders(), orders(), orders(ONE)])
    assert await within(claims(SOON).next(server.agent())) == ONE
    assert server.asked == 3


# --- cancellation ---------------------------------------------------------------------------------
async def test_a_claim_that_is_called_off_while_the_server_answers_loses_no_command() -> None:
    server, ours = Server([orders(ONE, TWO)], gate=anyio.Event()), claims()
    got: list[TrainCommand | None] = []

    async def wait() -> None:
        got.append(await ours.next(server.agent()))

    assert server.gate is not None
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await server.arrived.wait()
            group.cancel_scope.cancel()
            server.gate.set()
    kept = {c.run_id for c in (*ours.undelivered, *got) if c is not None}
    assert kept == {"r1", "r2"}


async def test_a_claim_that_is_called_off_between_two_questions_lets_the_next_slot_ask() -> None:
    server, ours = Server([orders(), orders(ONE)]), claims()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(ours.next, server.agent(1))
            await server.arrived.wait()
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert await ours.next(server.agent(2)) == ONE


async def test_a_server_that_never_answers_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASK_SECONDS", 0.05)
    server, told = Server([orders(ONE)], gate=anyio.Event()), Told()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            group.start_soon(told.claims.next, server.agent())
            while not told.claims.trouble:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert told.claims.trouble == "HTTP 504"


async def test_a_claim_that_is_called_off_does_not_wait_long_for_a_server_that_stalls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LATE_SECONDS", 0.05)
    server, ours = Server([orders(ONE)], gate=anyio.Event()), claims()
    with anyio.fail_after(SECONDS / 2):  # less than ASK_SECONDS
        async with anyio.create_task_group() as group:
            group.start_soon(ours.next, server.agent())
            await server.arrived.wait()
            group.cancel_scope.cancel()


async def test_a_server_that_slows_us_down_is_left_alone_by_every_slot() -> None:
    told, server = Told(SOON), Server([orders(ONE)])
    told.guards.upstream.failed(429, "slow down", 0.6)
    with anyio.fail_after(SECONDS):
        began = anyio.current_time()
        for number in range(2):
            with anyio.move_on_after(0.1):
                await told.claims.next(server.agent(number))
        assert server.asked == 0
        await told.claims.next(server.agent(3))
        assert anyio.current_time() - began >= 0.5
    assert told.claims.trouble == ""


# --- what the server says -------------------------------------------------------------------------
async def test_an_exit_without_work_tells_that_the_sweep_may_be_over_and_waits() -> None:
    told, server = Told(SOON), Server([orders({"type": "exit"}), orders(ONE)])
    assert await within(told.claims.next(server.agent())) == ONE
    assert told.ended == 1


async def test_an_exit_beside_work_is_the_business_of_the_next_question() -> None:
    told, server = Told(), Server([orders({"type": "exit"}, ONE)])
    assert await within(told.claims.next(server.agent())) == ONE
    assert told.ended == 0


async def test_a_command_of_a_newer_server_does_not_stop_the_others() -> None:
    server = Server([orders({"type": "dance"}, {"type": "stop", "run_id": "x"}, ONE)])
    assert await within(claims().next(server.agent())) == ONE


FAILURES = [
    Reply(500, b'{"error": "oops"}'),
    Reply(502, b""),
    Reply(429, b"{}"),
    Reply(200, b"<html>an odd proxy</html>"),
    Reply(200, b'{"data": {"agentHeartbeat": null}}'),
]


@pytest.mark.parametrize("reply", FAILURES)
async def test_a_failed_question_is_asked_again_and_the_trouble_is_shown_until_it_is_over(
    reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "FIRST_BACKOFF_SECONDS", SOON)
    server, ours = Server([reply, reply, orders(ONE)]), claims()
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            got: list[TrainCommand | None] = []

            async def wait() -> None:
                got.append(await ours.next(server.agent()))

            group.start_soon(wait)
            while not ours.trouble:
                await anyio.lowlevel.checkpoint()
            assert ours.trouble.startswith(f"HTTP {reply.status}")
    assert got == [ONE]
    assert (server.asked, ours.trouble) == (3, "")


@pytest.mark.parametrize("failures", [1, 2, 5, 10, 100])
def test_pauses_after_failures_grow_are_spread_and_have_a_ceiling(failures: int) -> None:
    server = Server([orders()])
    pauses = []
    for _ in range(200):
        ours = claims()
        ours._guards.upstream.failures = failures - 1
        pauses.append(ours._on_failure(server.agent(), Reply(500, b"")))
    ceiling = min(2.0**failures, upstream.LONGEST_BACKOFF_SECONDS)
    assert min(pauses) >= 0.5
    assert ceiling / 2 < max(pauses) <= ceiling
    assert len(set(pauses)) > 100, "many nodes must not ask in step"


def test_a_server_that_names_a_time_is_left_alone_for_that_long() -> None:
    server = Server([orders()])
    assert claims()._on_failure(server.agent(), Reply(429, b"", 300.0)) == 300.0
    assert claims()._on_failure(server.agent(), Reply(429, b"", 0.1)) >= 0.5


async def test_an_agent_that_the_server_does_not_know_is_discarded_and_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "FIRST_BACKOFF_SECONDS", SOON)
    told, gone = Told(), Server([Reply(404, b'{"error": "no such agent"}')])
    agent = gone.agent()
    assert await within(told.claims.next(agent)) is None
    assert agent.unknown
    assert told.ended == 1, "it may be the whole sweep that is gone"
    assert gone.asked == 1
    assert await within(told.claims.next(Server([orders(ONE)]).agent(2))) == ONE
