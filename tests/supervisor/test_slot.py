"""A slot between the lease and the word to start."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from coordinator.core.model import Outcome, SlotState, SweepState
from coordinator.supervisor.agent import Agent
from coordinator.supervisor.slot import Ready, Slot
from tests.supervisor.node import node
from tests.supervisor.stage import SECONDS, command, until

pytestmark = pytest.mark.anyio
HELLO = b'{"say":"hello","agent":"t","run_id":"r1","pid":1,"child_pid":null,"argv":[],"cwd":"/"}\n'


async def test_a_lease_that_was_lost_while_its_agent_started_starts_no_training(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as a:
        services = a.pool.services
        slot, lease = await a.leased(0, "r1")
        links: list[Any] = []

        async def expect() -> None:
            links.append(await services.shims.expect("t", "r1"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect)
            await anyio.wait_all_tasks_blocked()
            stream = await anyio.connect_unix(services.shims.path)
            await stream.send(HELLO)
        await services.leases.release(lease.token, Outcome.FENCED)  # as if it had been taken

        ready = Ready(command("r1"), lease, Agent(1, "t", tmp_path / "a.log"), links[0])
        a.group.start_soon(slot._train, ready)

        async with stream:
            with anyio.fail_after(SECONDS), pytest.raises(anyio.EndOfStream):
                await stream.receive()
        await until("the run is kept", lambda: bool(services.claims.undelivered))
        assert [c.run_id for c in services.claims.undelivered] == ["r1"]
        assert slot.training is None


async def test_a_slot_whose_agent_died_claims_until_there_is_another_and_can_be_called_off(
    tmp_path: Path,
) -> None:
    """The plan has agents started for slots that claim; a slot that drains must not wait."""
    async with node(tmp_path) as a:
        services = a.pool.services
        slot, lease = await a.leased(0, "r1")
        dead = Agent(1, "t", tmp_path / "a.log")
        dead.adopt(None, "r1")
        with anyio.CancelScope() as slot._claiming:
            a.group.start_soon(call_off_once_it_claims, slot)
            with anyio.fail_after(SECONDS):
                await slot._deliver(dead, command("r1"), lease)

        assert [c.run_id for c in services.claims.undelivered] == ["r1"]
        assert not services.leases.stands(lease.token)


async def call_off_once_it_claims(slot: Slot) -> None:
    while slot.state is not SlotState.CLAIMING or slot.run_id is None:
        await slot._services.changed.wait()
    slot.stop_claiming(hard=False)


async def test_a_fetched_run_of_a_sweep_that_is_over_is_trained_unless_it_was_cancelled(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as a:
        pool = a.pool
        pool.settings = replace(pool.settings, until_done=True)
        await pool.services.claims.put_back(command("r1"))
        pool.sweep.over, pool.sweep.state = True, SweepState.FINISHED
        await pool._prospects.look(quiet=pool._quiet)
        assert (pool._claiming, pool._finished()) == (True, None)
        pool.sweep.state = SweepState.CANCELED
        assert (pool._claiming, pool._finished()) == (False, 0)
