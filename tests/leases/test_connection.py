"""Which Redis is good enough, what is shown of its address, and what a user's rights must be."""

from pathlib import Path

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from coordinator.core.model import Outcome, SweepPath
from coordinator.errors import ConfigError, UserError
from coordinator.leases import LeaseKeeper
from coordinator.leases.addresses import redacted_url
from coordinator.leases.connection import open_client
from coordinator.leases.fitness import MINIMAL_ACL, check_server
from coordinator.redis_server import find_server
from tests.leases.nodes import FAST, NO_RACE, claim, node, resume, until
from tests.support.redis import FaultProxy, RedisServer, redis_server

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:s3cret@h:1/0", "redis://:***@h:1/0"),
        ("redis://user:s3cret@h", "redis://user:***@h"),
        (
            "rediss://user:s3%40c@h?ssl_password=s3cret&db=1",
            "rediss://user:***@h?ssl_password=***&db=1",
        ),
        ("redis://h?password=s3cret", "redis://h?password=***"),
        ("unix:///run/r.sock?password=s3cret", "unix:///run/r.sock?password=***"),
        ("unix://user:s3cret@/run/r.sock", "unix://user:***@/run/r.sock"),
        (
            "redis+sentinel://u:s3@cret@h:1,i:2/p?sentinel_password=s3cret",
            "redis+sentinel://u:***@h:1,i:2/p?sentinel_password=***",
        ),
        ("redis+cluster://:s3cret@[::1]:1,h", "redis+cluster://:***@[::1]:1,h"),
        ("redis://u:s3/cret@h", "redis://u:***@h"),
        ("s3cret", "s3cret"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert redacted_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "h:6379",
        "redis+sentinel://h:26379",
        "redis+sentinel://h:x/primary",
        "redis+sentinel://h,,i/primary",
        "redis+sentinel://h:99999/primary",
        "redis+cluster://h/1",
        "redis+cluster://h?no_such_option=1",
        "redis+sentinel://h/primary?no_such_option=1",
        "redis://h?no_such_option=1",
        "unix+cluster:///s",
        "",
    ],
)
def test_an_unusable_url_is_refused_by_the_name_of_its_key(url: str, sweep: SweepPath) -> None:
    with pytest.raises(ConfigError) as caught:
        LeaseKeeper(url, sweep, "n", FAST, Path("nowhere"))
    assert caught.value.where == "[redis] url"


def test_an_unusable_url_does_not_show_its_password(sweep: SweepPath) -> None:
    with pytest.raises(ConfigError) as caught:
        LeaseKeeper("http://u:s3cret@h", sweep, "n", FAST, Path("nowhere"))
    assert "s3cret" not in str(caught.value)


def test_a_bad_option_in_the_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        open_client("redis://h?max_connections=many", timeout_seconds=1, connections=1)


async def run_bare(url: str, sweep: SweepPath, directory: Path) -> None:
    """Run a keeper until it raises."""
    with anyio.fail_after(20):
        await LeaseKeeper(url, sweep, "n", FAST, directory).run()


async def test_an_eviction_policy_that_loses_leases_is_refused(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with redis_server(tmp_path, "--maxmemory-policy", "volatile-ttl") as server:
        with pytest.raises(UserError, match="noeviction"):
            await run_bare(server.url, sweep, tmp_path)


async def test_a_wrong_password_is_the_users_fault(sweep: SweepPath, tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--requirepass", "right") as server:
        for url in (f"{server.url}?password=s3cret", server.url):
            with pytest.raises(UserError, match="refuses") as caught:
                await run_bare(url, sweep, tmp_path)
            assert "s3cret" not in str(caught.value)
        async with node(f"{server.url}?password=right", sweep, tmp_path) as a:
            await a.held(claim("r1"))


async def test_a_redis_that_is_too_old_is_refused(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with redis.client() as client:
        facts = dict(await client.info("everything"))

        async def old_info(*_: object) -> dict[str, object]:
            return facts | {"redis_version": "6.2.14"}

        monkeypatch.setattr(client, "info", old_info)
        with pytest.raises(UserError, match=r"6\.2\.14 is too old"):
            await check_server(client, "k")


async def test_a_replica_is_waited_for_like_an_unreachable_redis(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with (
        redis_server(tmp_path) as server,
        server.client() as client,
    ):
        await client.replicaof("127.0.0.1", "1")
        async with node(server.url, sweep, tmp_path, started=False) as a:
            await until(lambda: "replica" in a.keeper.health().detail)
            await client.replicaof("NO", "ONE")
            await until(lambda: a.keeper.health().state == "ok")


async def test_the_minimal_rights_suffice_and_harmful_commands_are_refused(
    sweep: SweepPath, tmp_path: Path
) -> None:
    async with redis_server(tmp_path) as server, server.client() as admin:
        await acl(admin, "coordinator", *MINIMAL_ACL)
        async with FaultProxy(server.socket).serve() as proxy:
            url = proxy.url.replace("redis://", "redis://coordinator:s3cret@")
            async with (
                node(url, sweep, tmp_path, "node-a", NO_RACE) as a,
                node(url, sweep, tmp_path, "node-b", NO_RACE) as b,
                server.client(url) as user,
            ):
                lease = await a.held(claim("r1"))
                assert await a.keeper._renewer.round()
                assert len(await a.keeper.list_leases()) == 1
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(b.held, resume("r1"))
                    await until(lambda: len(b.journalled()) == 1)
                    await a.keeper.steal("r1", lease.fence)
                    await until(lambda: a.stopped != [])
                    await a.keeper.release(lease.token, Outcome.PREEMPTED)
                await admin.flushall()
                assert await b.keeper._renewer.round(), "a wipe is answered as well"
                log = await admin.acl_log()
                assert [e for e in log if not str(e["object"]).startswith("client")] == []
                for command in ("FLUSHALL", "KEYS *", "CONFIG GET *", "DEL x", "SHUTDOWN"):
                    with pytest.raises(NoPermissionError):
                        await user.execute_command(*command.split())  # type: ignore[no-untyped-call]
                with pytest.raises(NoPermissionError):
                    await user.get("somebody-elses-key")


async def acl(admin: Redis, name: str, *rules: str) -> None:
    """Make a user with the password s3cret."""
    await admin.execute_command(  # type: ignore[no-untyped-call]
        "ACL", "SETUSER", name, "on", ">s3cret", *rules
    )


async def test_missing_rights_are_the_users_fault(sweep: SweepPath, tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server, server.client() as admin:
        await acl(admin, "poor", "~*", "+ping")
        url = f"unix://poor:s3cret@{server.socket}"
        with pytest.raises(UserError, match="refuses"):
            await run_bare(url, sweep, tmp_path)


async def test_valkey_serves_as_well(sweep: SweepPath, tmp_path: Path) -> None:
    program = str(find_server())
    if "valkey" not in program:
        pytest.skip("no Valkey is installed")
    async with redis_server(tmp_path, program=program) as server, server.client() as client:
        assert (await check_server(client, "k")).name.startswith("Valkey ")
        async with node(server.url, sweep, tmp_path) as a:
            lease = await a.held(claim("r1"))
            await client.config_set("maxmemory", "1mb")
            assert await a.keeper._renewer.round()
            await a.keeper.release(lease.token, Outcome.FAILED)
            assert a.journalled() == set()
