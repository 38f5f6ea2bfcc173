"""The agents of a node as real processes: started, held, frozen, given a run, ended."""

import os
import signal
from pathlib import Path
from time import monotonic

import anyio
import pytest

from coordinator.core import wire
from coordinator.gateway.desk import Reply
from coordinator.process import tree
from coordinator.supervisor import agent as agent_module
from coordinator.supervisor import agents as agents_module
from coordinator.supervisor.agent import AgentState
from coordinator.supervisor.agents import OUTPUT_FILES_KEPT, last_words, prune_outputs
from tests.supervisor.stage import SECONDS, command, crew, state_of, until, within

pytestmark = pytest.mark.anyio

FAIL = 'echo "wandb: ERROR no such sweep"; echo "bye"; exit 1'


# --- starting -------------------------------------------------------------------------------------
async def test_an_agent_is_started_for_one_run_with_its_own_address_and_token(
    tmp_path: Path,
) -> None:
    show = 'echo "$@" > notes; env >> notes; mv notes noted; exec sleep 600'
    async with crew(tmp_path, show) as ours:
        [agent] = await ours.started()
        await until("it has noted", (tmp_path / "noted").exists)
        words, *env = (tmp_path / "noted").read_text().splitlines()
        assert words == "agent --count 1 my-team/vision/a1b2c3d4"
        assert f"WANDB_BASE_URL=http://127.0.0.1:1/a/{agent.token}" in env
        assert f"COORDINATOR_RUN_AGENT={agent.token}" in env
        assert ours.agents.knows(agent.token)
        assert not ours.agents.knows(agent.token[:-1])


async def test_no_two_agents_share_a_token_a_number_or_an_output(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        agents = await ours.started(3)
        assert len({agent.token for agent in agents}) == 3
        assert len({agent.output for agent in agents}) == 3
        assert [agent.number for agent in agents] == [1, 2, 3]
        assert min(len(agent.token) for agent in agents) >= 20, "it keeps other users out"


async def test_numbers_go_on_where_an_earlier_daemon_stopped(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("agent-7.log", "agent-12.log", "agent-x.log", "other-99.log"):
        (tmp_path / "logs" / name).touch()
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        assert agent.number == 13


async def test_agents_are_counted_by_where_they_stand(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        first, second = await ours.started(2)
        assert (ours.agents.starting, ours.agents.warm, len(ours.agents.ready)) == (2, 0, 2)
        await ours.at_the_desk(first)
        assert (ours.agents.starting, ours.agents.warm, len(ours.agents.ready)) == (1, 1, 2)
        assert await within(ours.agents.reserve()) is first
        assert (ours.agents.starting, ours.agents.warm, len(ours.agents.ready)) == (1, 0, 2)
        ours.agents.give(first, command("r1"))
        assert ours.agents.ready == [second]


# --- failing --------------------------------------------------------------------------------------
async def test_an_agent_that_ends_without_a_run_is_waited_out_before_another_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_module, "FIRST_BACKOFF_SECONDS", 0.05)
    async with crew(tmp_path, FAIL) as ours:
        ours.agents.start(1)
        await until("it was waited out", lambda: not ours.agents.may_start)
        assert ours.agents.trouble == "1 agents in a row ended early"
        assert ours.agents.ready == []
        await until("it may start again", lambda: ours.agents.may_start)
        assert ours.agents.fatal is None


async def test_after_two_failures_before_any_success_the_agents_own_words_are_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_module, "FIRST_BACKOFF_SECONDS", 0.0)
    async with crew(tmp_path, FAIL) as ours:
        ours.agents.start(1)
        await until("one failed", lambda: bool(ours.agents.trouble))
        ours.agents.start(1)
        await until("it is hopeless", lambda: ours.agents.fatal is not None)
        assert ours.agents.fatal == "wandb: ERROR no such sweep"
        assert not ours.agents.may_start


async def test_failures_after_a_success_are_never_fatal_and_a_success_ends_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents_module, "FIRST_BACKOFF_SECONDS", 0.0)
    async with crew(tmp_path, "echo up; exec sleep 600") as ours:
        [agent] = await ours.started()
        output = agent.output
        await until("it is up", lambda: output.read_text() == "up\n")
        ours.agents.registered(agent.token, "A1")
        assert (ours.agents.proven, agent.server_id) == (True, "A1")
        (tmp_path / "wandb").write_text(f"#!/bin/sh\n{FAIL}\n")
        for count in range(1, 5):
            ours.agents.start(1)
            words = f"{count} agents in a row ended early"
            await until(words, lambda words=words: ours.agents.trouble == words)  # type: ignore[misc]
        assert ours.agents.fatal is None
        ours.agents.registered(agent.token, "A1")
        assert ours.agents.trouble == ""


@pytest.mark.parametrize("harm", ["absent program", "absent directory"])
async def test_an_agent_that_cannot_even_be_started_is_a_failure_like_others(
    harm: str, tmp_path: Path
) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    async with crew(workdir) as ours:
        (workdir / "wandb").unlink()
        if harm == "absent directory":
            (workdir / "logs").rmdir()
            workdir.rmdir()
            workdir.touch()
        ours.agents.start(1)
        await until("it failed", lambda: bool(ours.agents.trouble))
        assert ours.agents.ready == []


async def test_a_server_that_takes_no_agent_on_is_told_of_for_the_sweep_may_be_over(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        ours.agents.turned_away(agent.token, Reply(400, b'{"error": "Sweep is not running"}'))
        assert ours.refusals == ["refused"]


async def test_an_agent_that_is_turned_away_is_our_guest_while_that_is_of_use(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path, welcome=True) as ours:
        [agent] = await ours.started()
        assert ours.agents.turned_away(agent.token, Reply(403, b"{}")) is None
        assert not ours.agents.is_guest(agent.token)
        assert ours.agents.turned_away(agent.token, Reply(400, b"{}"))
        assert ours.agents.is_guest(agent.token)

        ours.agents.dismiss_guests()

        await agent.gone.wait()


# --- holding and freezing -------------------------------------------------------------------------
async def test_a_held_heartbeat_is_answered_the_moment_a_run_comes_and_the_next_one_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        await ours.at_the_desk(agent)
        await anyio.wait_all_tasks_blocked()
        assert ours.answers == []
        ours.agents.give(agent, command("r1"))
        with anyio.fail_after(SECONDS):
            while not ours.answers:
                await ours.changed.wait()
        orders = wire.parse_orders(ours.answers[0])
        assert orders is not None
        assert orders.train == (command("r1"),)
        assert (agent.state, agent.run_id) == (AgentState.BUSY, "r1")
        monkeypatch.setattr(agent_module, "HOLD_SECONDS", 0.01)
        assert agent.beat is not None
        again = wire.parse_orders(await within(agent.hold(agent.beat)))
        assert again == wire.Orders((), (), exit=False, other=())


async def test_an_agent_without_work_is_frozen_in_its_pause_and_woken_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "HOLD_SECONDS", 0.05)
    monkeypatch.setattr(agents_module, "FREEZE_AFTER_SECONDS", 0.05)
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        pid = agent.pid
        assert pid is not None
        await ours.at_the_desk(agent)
        await until("it is frozen", lambda: state_of(pid) == "T")
        ours.agents.give(agent, command("r1"))
        await until("it is awake", lambda: state_of(pid) != "T")
        beat = agent.beat
        assert beat is not None
        orders = wire.parse_orders(await within(ours.agents.idle(agent.token, beat)))
        assert orders is not None
        assert orders.train == (command("r1"),), "the run waited for its next heartbeat"
        agent.freeze()
        assert state_of(pid) != "T", "an agent with a run is never frozen"


async def test_an_agent_is_not_frozen_while_its_heartbeat_is_held(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        await ours.at_the_desk(agent)
        await anyio.wait_all_tasks_blocked()
        agent.freeze()
        assert agent.pid is not None
        assert state_of(agent.pid) != "T"


async def test_a_hold_without_work_is_answered_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "HOLD_SECONDS", 0.01)
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        await ours.at_the_desk(agent)
        assert agent.beat is not None
        answer = await within(agent.hold(agent.beat))
        assert wire.parse_orders(answer) == wire.Orders((), (), exit=False, other=())


# --- reserving ------------------------------------------------------------------------------------
async def test_an_agent_that_was_reserved_is_nobody_elses_until_it_is_given_back(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        with anyio.move_on_after(0.05) as early:
            await ours.agents.reserve()
        assert early.cancelled_caught, "it has not come to the desk yet"
        await ours.at_the_desk(agent)
        assert await within(ours.agents.reserve()) is agent
        with anyio.move_on_after(0.05) as taken:
            await ours.agents.reserve()
        assert taken.cancelled_caught
        ours.agents.give_back(agent)
        assert await within(ours.agents.reserve()) is agent


async def test_giving_back_an_agent_that_has_a_run_by_now_changes_nothing(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        await ours.at_the_desk(agent)
        await within(ours.agents.reserve())
        ours.agents.give(agent, command("r1"))
        ours.agents.give_back(agent)
        assert agent.state is AgentState.BUSY


# --- ending ---------------------------------------------------------------------------------------
async def test_idle_agents_are_dismissed_before_reserved_ones_with_all_of_their_session(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path, "sleep 600 & sleep 600") as ours:
        first, second = await ours.started(2)
        await ours.at_the_desk(first)
        await within(ours.agents.reserve())
        pid = second.pid
        assert pid is not None
        ours.agents.dismiss(keep=1)
        assert ours.agents.ready == [first]
        await within(second.gone.wait())
        assert not ours.agents.knows(second.token)
        await until("nothing is left", lambda: not tree.in_session(pid))
        assert ours.agents.trouble == "", "a dismissed agent is no failure"


async def test_a_frozen_agent_can_be_ended(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        agent.freeze()
        pid = agent.pid
        assert pid is not None
        await until("it is frozen", lambda: state_of(pid) == "T")
        ours.agents.discard(agent)
        await within(agent.gone.wait())
        assert state_of(pid) in ("", "Z")


async def test_an_agent_whose_run_is_over_may_leave_by_itself_and_is_ended_if_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crew(tmp_path) as ours:
        polite, stubborn = await ours.started(2)
        for agent in (polite, stubborn):
            ours.agents.give(agent, command(f"r{agent.number}"))
        async with anyio.create_task_group() as group:
            group.start_soon(ours.agents.end_lingering, polite)
            assert polite.pid is not None
            os.kill(polite.pid, signal.SIGTERM)
        assert not polite.dismissed
        monkeypatch.setattr(agents_module, "LINGER_SECONDS", 0.05)
        await within(ours.agents.end_lingering(stubborn))
        await within(stubborn.gone.wait())
        assert stubborn.dismissed


async def test_at_the_end_every_agent_is_gone_whatever_it_was_doing(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        agents = await ours.started(3)
        pids = [agent.pid for agent in agents if agent.pid]
        agents[0].freeze()
        ours.agents.give(agents[1], command("r1"))
        await within(ours.agents.end_all())
        assert len(pids) == 3
        assert all(state_of(pid) in ("", "Z") for pid in pids)
        assert ours.agents.pids == []


# --- heartbeats of an agent with a run -----------------------------------------------------------
async def test_the_server_hears_of_a_run_no_more_often_than_from_a_bare_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "REPORT_SECONDS", 0.3)
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        began = monotonic()
        ours.agents.give(agent, command("r1"))
        for _ in range(3):
            assert await within(ours.agents.due(agent.token))
        assert monotonic() - began >= 0.9


async def test_an_agent_whose_training_has_ended_is_let_go_at_once(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        ours.agents.give(agent, command("r1"))
        heard: list[bool] = []

        async def beat() -> None:
            heard.append(await ours.agents.due(agent.token))

        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            await anyio.wait_all_tasks_blocked()
            agent.run_ended.set()
            with anyio.move_on_after(agent_module.REPORT_SECONDS) as in_time:
                while not heard:
                    await anyio.lowlevel.checkpoint()
        assert not in_time.cancelled_caught
        assert heard == [False]
        assert not await ours.agents.due(agent.token), "nor does the server hear of it later"


# --- orders ---------------------------------------------------------------------------------------
async def test_a_run_that_a_person_stopped_is_remembered_with_its_agent(tmp_path: Path) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        ours.agents.give(agent, command("r1"))
        ours.agents.ordered(agent.token, wire.Orders((), (), exit=False, other=()))
        assert agent.cancelled_runs == set()
        ours.agents.ordered(agent.token, wire.Orders((), ("r0",), exit=False, other=()))
        assert agent.cancelled_runs == {"r0"}
        ours.agents.ordered(agent.token, wire.Orders((), (), exit=True, other=()))
        assert agent.cancelled_runs == {"r0", "r1"}, "an exit ends the run that it has"


async def test_an_exit_is_withheld_while_the_run_is_ended_gracefully(tmp_path: Path) -> None:
    leave = wire.Orders((), (), exit=True, other=())
    async with crew(tmp_path, graceful_cancel=True) as ours:
        [agent] = await ours.started()
        ours.agents.give(agent, command("r1"))
        assert not ours.agents.ordered(agent.token, leave)
        assert agent.exit_ordered, "the pool ends the run"
        stop = wire.Orders((), ("r1",), exit=False, other=())
        assert ours.agents.ordered(agent.token, stop), "a person stopped this run alone"
        agent.run_ended.set()
        assert ours.agents.ordered(agent.token, leave)
        assert ours.refusals == ["refused"] * 2, "the sweep is looked at"


async def test_an_exit_reaches_an_agent_at_once_where_cancels_are_not_graceful(
    tmp_path: Path,
) -> None:
    async with crew(tmp_path) as ours:
        [agent] = await ours.started()
        ours.agents.give(agent, command("r1"))
        assert ours.agents.ordered(agent.token, wire.Orders((), (), exit=True, other=()))


# --- output ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("\n \n", ""),
        ("one\ntwo\n\n", "two"),
        ("wandb: ERROR bad key\nwandb: bye\n", "wandb: ERROR bad key"),
        ("ValueError: x\nmore\n", "ValueError: x"),
        ("x" * 5000 + "\n", "x" * 300),
        ("caf\xe9\n", "café"),
    ],
)
def test_the_last_words_of_an_agent_are_its_last_error_or_line(
    text: str, words: str, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    output.write_text(text, encoding="utf-8")
    assert last_words(output) == words
    assert last_words(tmp_path / "absent") == ""


def test_old_output_files_are_removed_and_only_those(tmp_path: Path) -> None:
    for number in range(OUTPUT_FILES_KEPT + 10):
        path = tmp_path / f"agent-{number}.log"
        path.touch()
        os.utime(path, (number, number))
    (tmp_path / "keep.me").touch()
    prune_outputs(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == OUTPUT_FILES_KEPT + 1
    assert {"keep.me", f"agent-{OUTPUT_FILES_KEPT + 9}.log"} <= left
    assert "agent-9.log" not in left
