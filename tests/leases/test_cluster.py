"""Leases on a real Redis Cluster of three nodes."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import Outcome, SweepPath
from coordinator.errors import UserError
from coordinator.leases import Dropped, Lease, LeaseKeeper
from coordinator.leases.fitness import CLUSTER_ACL, MINIMAL_ACL
from coordinator.leases.keys import Keys
from tests.leases.nodes import FAST, NO_RACE, claim, node, resume, until
from tests.support.redis import RedisServer
from tests.support.topology import Cluster, ask, cluster_redis

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def cluster(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    del anyio_backend
    async with cluster_redis(tmp_path_factory.mktemp("c")) as found:
        yield found


async def test_a_lease_lives_on_the_node_of_its_sweep_and_a_release_wakes_the_next(
    cluster: Cluster, sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        node(cluster.url, sweep, tmp_path, "node-a", NO_RACE) as a,
        node(cluster.url, sweep, tmp_path, "node-b", NO_RACE) as b,
    ):
        first = await a.held(claim("r1"))
        assert await a.keeper._renewer.round()
        (view,) = await b.keeper.list_leases()
        assert (view.run_id, view.owner, view.fence) == ("r1", "node-a", first.fence)
        got: list[Lease | Dropped] = []

        async def second() -> None:
            got.append(await b.keeper.acquire(resume("r1")))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            await until(lambda: len(b.journalled()) == 1)
            await a.keeper.release(first.token, Outcome.PREEMPTED)
        assert isinstance(got[0], Lease)
        assert got[0].fence > first.fence
    home = await cluster.owner(Keys(sweep).epoch)
    found = [len(await ask(each, "KEYS", f"{Keys(sweep).prefix}*")) for each in cluster.nodes]
    assert found[home] > 5
    assert sum(found) == found[home]


async def test_a_sweep_that_moves_to_another_node_keeps_its_leases(
    cluster: Cluster, sweep: SweepPath, tmp_path: Path
) -> None:
    async with node(cluster.url, sweep, tmp_path) as a:
        lease = await a.held(claim("r1"))
        home = await cluster.owner(Keys(sweep).epoch)
        await cluster.move(Keys(sweep).epoch, (home + 1) % 3)
        other = await a.held(claim("r2"))
        await until(lambda: a.keeper.health().state == "ok")
        assert sorted(each.run_id for each in a.keeper.held()) == ["r1", "r2"]
        views = {view.run_id: view.fence for view in await a.keeper.list_leases()}
        assert views == {"r1": lease.fence, "r2": other.fence}
        assert (a.fenced, a.stopped) == ([], [])
    assert await cluster.owner(Keys(sweep).epoch) == (home + 1) % 3


async def test_the_documented_rights_suffice_in_a_cluster(
    cluster: Cluster, sweep: SweepPath, tmp_path: Path
) -> None:
    for each in cluster.nodes:
        rules = ("on", ">s3cret", *MINIMAL_ACL, *CLUSTER_ACL)
        await ask(each, "ACL", "SETUSER", "coordinator", *rules)
    url = cluster.url.replace("://", "://coordinator:s3cret@")
    async with node(url, sweep, tmp_path) as a:
        lease = await a.held(claim("r1"))
        assert await a.keeper._renewer.round()
        home = await cluster.owner(Keys(sweep).epoch)
        await cluster.move(Keys(sweep).epoch, (home + 1) % 3)
        assert await a.keeper._renewer.round()
        await a.keeper.release(lease.token, Outcome.FAILED)
        await until(lambda: a.journalled() == set())
    for each in cluster.nodes:
        assert await ask(each, "ACL", "LOG") == []


async def test_the_wrong_form_of_address_is_said_in_one_line(
    cluster: Cluster, redis: RedisServer, sweep: SweepPath, tmp_path: Path
) -> None:
    single = await ask(redis, "CONFIG", "GET", "port")
    assert single
    plain = f"redis://127.0.0.1:{cluster.ports[0]}"
    with (
        anyio.fail_after(20),
        pytest.raises(UserError, match=r"give the Cluster as redis\+cluster"),
    ):
        await LeaseKeeper(plain, sweep, "n", FAST, tmp_path).run()
