"""The three documents that the gateway acts on, and that it touches no other."""

import gzip
import json

import anyio
import pytest
import yaml
from aiohttp import ClientTimeout, web

from coordinator.core import wire
from coordinator.gateway import IdleBeat
from tests.gateway.stage import SECONDS, SHIM, TOKEN, recorded, says, staged

pytestmark = pytest.mark.anyio

IDLE, RUN_COMMAND = recorded("mutation Heartbeat")
BUSY, NOTHING = recorded("mutation Heartbeat", 1)
SWEEP, SWEEP_ANSWER = recorded("SweepWithRuns")
CREATE, CREATED = recorded("CreateAgent")
AGENT = json.loads(IDLE)["variables"]["id"]


# --- the sweep ------------------------------------------------------------------------------------
async def test_the_sweep_document_comes_back_with_the_shim_in_front() -> None:
    async with staged(says(SWEEP_ANSWER)) as stage:
        status, body = await stage.graphql(SWEEP)
        assert status == 200
        config = yaml.safe_load(json.loads(body)["data"]["project"]["sweep"]["config"])
        assert config["command"][: len(SHIM)] == SHIM
        assert stage.asked[0].body == SWEEP, "the question itself is not changed"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b'{"data": {"project": null}}', 200),
        (b'{"data": {"project": {"sweep": {"config": null}}}}', 200),
        (b"<html>an odd proxy</html>", 200),
        (b'{"errors": [{"message": "no"}]}', 200),
        (SWEEP_ANSWER, 500),
        (b'{"error": "forbidden"}', 403),
    ],
)
async def test_a_sweep_answer_that_is_not_what_we_know_passes_untouched(
    answer: bytes, status: int
) -> None:
    async with staged(says(answer, status)) as stage:
        assert await stage.graphql(SWEEP) == (status, answer)


# --- the registration -----------------------------------------------------------------------------
async def test_a_registration_is_reported_to_the_desk_and_passes_unchanged() -> None:
    async with staged(says(CREATED)) as stage:
        assert await stage.graphql(CREATE) == (200, CREATED)
        assert stage.desk.told == [("registered", (TOKEN, AGENT))]


@pytest.mark.parametrize(
    ("status", "answer"),
    [(400, b'{"errors": [{"message": "Sweep x is not running"}]}'), (200, b'{"data": null}')],
)
async def test_a_refused_registration_is_reported_to_the_desk_and_passes_unchanged(
    status: int, answer: bytes
) -> None:
    async with staged(says(answer, status)) as stage:
        assert await stage.graphql(CREATE) == (status, answer)
        [(what, (token, reply))] = stage.desk.told
        assert (what, token, reply.status, reply.body) == ("turned_away", TOKEN, status, answer)


async def test_a_guest_is_registered_here_and_the_server_gets_nothing_of_it() -> None:
    async with staged(says(b'{"error": "Sweep x is not running"}', 400)) as stage:
        stage.desk.guest = "guest-1"
        status, body = await stage.graphql(CREATE)
        assert (status, wire.agent_id(body)) == (200, "guest-1")
        stage.asked.clear()

        async def answer(beat: IdleBeat) -> bytes:
            return (await beat.ask()).body

        stage.desk.answer = answer
        for heartbeat in (IDLE, BUSY):
            assert await stage.graphql(heartbeat) == (200, wire.heartbeat_answer(AGENT, []))
        assert stage.asked == []


# --- heartbeats -----------------------------------------------------------------------------------
@pytest.mark.parametrize("packed", [False, True])
async def test_an_idle_heartbeat_is_held_and_answered_by_the_desk_alone(packed: bool) -> None:
    async def answer(beat: IdleBeat) -> bytes:
        return wire.heartbeat_answer(beat.agent_id, [{"type": "run"}])

    async with staged() as stage:
        stage.desk.answer = answer
        body, headers = (
            (gzip.compress(IDLE), {"Content_Encoding": "gzip"}) if packed else (IDLE, {})
        )
        assert await stage.graphql(body, **headers) == (
            200,
            wire.heartbeat_answer(AGENT, [{"type": "run"}]),
        )
        assert stage.desk.told == [("idle", (TOKEN, AGENT))]
        assert stage.asked == [], "the server is not asked until a slot asks"


async def test_a_held_heartbeat_is_sent_as_it_came_whenever_and_as_often_as_the_desk_asks() -> None:
    async def ask_twice(beat: IdleBeat) -> bytes:
        first, second = await beat.ask(), await beat.ask()
        assert (first.status, first.body) == (second.status, second.body) == (200, RUN_COMMAND)
        return b"{}"

    async with staged(says(RUN_COMMAND)) as stage:
        stage.desk.answer = ask_twice
        assert await stage.graphql(IDLE, Authorization="Basic abc") == (200, b"{}")
        assert [asked.body for asked in stage.asked] == [IDLE, IDLE]
        assert {asked.headers["Authorization"] for asked in stage.asked} == {"Basic abc"}


async def test_the_desk_sees_why_a_question_failed() -> None:
    replies = []

    async def ask(beat: IdleBeat) -> bytes:
        replies.append(await beat.ask())
        await stage.upstream.die()
        replies.append(await beat.ask())
        return b"{}"

    async with staged(says(b'{"error": "slow down"}', 429, Retry_After="30")) as stage:
        stage.desk.answer = ask
        await stage.graphql(IDLE)
        limited, down = replies
        assert (limited.status, limited.retry_after_seconds) == (429, 30.0)
        assert wire.error_text(limited.body) == "slow down"
        assert (down.status, down.retry_after_seconds) == (502, None)


async def test_an_agent_that_hangs_up_ends_its_hold() -> None:
    async with staged() as stage:
        with pytest.raises(TimeoutError):
            await stage.client.post(
                f"{stage.address}/graphql", data=IDLE, timeout=ClientTimeout(total=0.3)
            )
        with anyio.fail_after(SECONDS):
            await stage.desk.held.wait()
            await stage.desk.dropped.wait()


async def test_held_heartbeats_do_not_hold_other_requests_up() -> None:
    async with staged() as stage, anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(stage.graphql, IDLE)
        with anyio.fail_after(SECONDS):
            await stage.desk.held.wait()
            assert (await stage.request("GET", "storage/x"))[0] == 200
        group.cancel_scope.cancel()


async def test_orders_that_are_withheld_do_not_reach_the_agent() -> None:
    async with staged(says(wire.heartbeat_answer(AGENT, [{"type": "exit"}]))) as stage:
        stage.desk.passes_on = False
        status, body = await stage.graphql(BUSY)
        assert (status, wire.parse_orders(body)) == (200, wire.Orders((), (), False, ()))
        [(_, (_, orders))] = stage.desk.told
        assert orders.exit


async def test_a_heartbeat_of_an_agent_with_a_run_passes_at_once_and_its_orders_are_told() -> None:
    stop = wire.heartbeat_answer(AGENT, [{"type": "stop", "run_id": "r1"}])
    async with staged(says(stop)) as stage:
        assert await stage.graphql(BUSY) == (200, stop)
        [(what, (token, orders))] = stage.desk.told
        assert (what, token, orders.stop) == ("ordered", TOKEN, ("r1",))
        assert stage.asked[0].body == BUSY


@pytest.mark.parametrize("status", [404, 429, 500])
async def test_a_failed_heartbeat_of_an_agent_with_a_run_gives_no_commands(status: int) -> None:
    async with staged(says(NOTHING, status)) as stage:
        assert await stage.graphql(BUSY) == (status, NOTHING)
        assert stage.desk.told == ([] if status == 404 else [("troubled", (TOKEN, status))])


# --- everything else ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[1, 2]",
        json.dumps({"query": "query RunState { a }"}).encode(),
        json.dumps({"query": "mutation Heartbeat { a }", "variables": {"id": "x"}}).encode(),
        json.dumps({"query": "fragment SweepWithRuns on X { a }"}).encode(),
        b"\x1f\x8b broken gzip",
    ],
)
async def test_a_document_that_we_do_not_recognise_passes_both_ways_untouched(body: bytes) -> None:
    async with staged(says(SWEEP_ANSWER)) as stage:
        assert await stage.graphql(body) == (200, SWEEP_ANSWER)
        assert stage.asked[0].body == body
        assert stage.desk.told == []


async def test_a_body_in_a_compression_that_we_cannot_read_passes_untouched() -> None:
    body = b"\x0b\x05\x80compressed otherwise\x03"
    async with staged() as stage:
        assert (await stage.graphql(body, Content_Encoding="br"))[0] == 200
        [asked] = stage.asked
        assert (asked.body, asked.headers["Content-Encoding"]) == (body, "br")


async def test_a_graphql_address_that_is_asked_otherwise_than_by_post_just_passes() -> None:
    async def echo(request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(text=request.method)

    async with staged(echo) as stage:
        assert (await stage.request("GET", "graphql"))[:2] == (200, b"GET")
