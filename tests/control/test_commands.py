"""One request in, one answer out, whatever happens."""

import anyio
import pytest
from anyio import to_thread

from coordinator.core.model import DownMode
from coordinator.core.protocol import Failed, Invalid, Refused, RequestUnion, Scale
from tests.control.daemon import Daemon
from tests.control.raw import ask, command

pytestmark = pytest.mark.anyio


async def _names(daemon: Daemon) -> list[str]:
    return [event["event"] for event in await to_thread.run_sync(daemon.telemetry.tail, 100)]


async def test_a_request_reaches_the_handler_decoded_and_its_answer_comes_back(
    daemon: Daemon,
) -> None:
    reply = await command(daemon.socket, {"do": "scale", "target": "+2", "down": "kill"})
    assert daemon.asked == [Scale("+2", DownMode.KILL)]
    assert (reply.status, reply.json) == (
        200,
        {"answer": "done", "message": "as you say", "data": None},
    )


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b'{"do": "scale", "target": "2", "dwon": "kill"}', "dwon"),
        (b'{"do": "scale", "target": 2}', "$.target"),
        (b'{"do": "scale"}', "target"),
        (b'{"do": "scale", "target": "2", "down": "gently"}', "gently"),
        (b'{"do": "dance"}', "dance"),
        (b'["status"]', "object"),
        (b"{", "invalid request"),
        (b"", "invalid request"),
        (b'{"do": "\xff"}', "invalid request"),
    ],
)
async def test_an_invalid_request_is_refused_with_the_reason(
    daemon: Daemon, body: bytes, complaint: str
) -> None:
    reply = await command(daemon.socket, body)
    assert (reply.status, reply.json["answer"]) == (400, "invalid")
    assert complaint in reply.json["message"]
    assert daemon.asked == []


async def test_each_kind_of_answer_has_its_status(daemon: Daemon) -> None:
    for answer, code in ((Refused("not now"), 409), (Invalid("what?"), 400), (Failed("no"), 500)):
        daemon.answer = answer
        reply = await command(daemon.socket, {"do": "drain"})
        assert (reply.status, reply.json["message"]) == (code, answer.message)


@pytest.mark.parametrize("error", [RuntimeError("it\nbroke"), TimeoutError(), KeyError("x")])
async def test_an_exception_of_the_handler_is_an_answer_and_an_event_with_its_traceback(
    daemon: Daemon, error: Exception
) -> None:
    async def fail(_request: RequestUnion) -> None:
        raise error

    daemon.on_command = fail
    reply = await command(daemon.socket, {"do": "pause"})
    assert (reply.status, reply.json["answer"]) == (500, "failed")
    assert type(error).__name__ in reply.json["message"]
    assert "\n" not in reply.json["message"]
    events = await to_thread.run_sync(daemon.telemetry.tail, 10)
    (event,) = [event for event in events if event["event"] == "control_command_failed"]
    assert event["command"] == "pause"
    assert "Traceback" in event["exception"]
    assert (await command(daemon.socket, {"do": "status"})).status == 200


async def test_the_answer_about_an_exception_holds_no_secret(daemon: Daemon) -> None:
    async def fail(_request: RequestUnion) -> None:
        raise RuntimeError("cannot reach redis://user:pa55word@host")

    daemon.on_command = fail
    reply = await command(daemon.socket, {"do": "pause"})
    assert "pa55word" not in reply.json["message"]
    assert "host" in reply.json["message"]


async def test_commands_are_events_and_mere_looks_are_not(daemon: Daemon) -> None:
    for do in ("status", "runs", "leases", "drain"):
        await command(daemon.socket, {"do": do})
    events = await to_thread.run_sync(daemon.telemetry.tail, 100)
    received = [event for event in events if event["event"] == "control_command_received"]
    assert [event["command"] for event in received] == ["drain"]
    assert received[0]["uid"] >= 0


async def test_a_client_that_leaves_does_not_stop_its_command(daemon: Daemon) -> None:
    begun, finish, finished = anyio.Event(), anyio.Event(), anyio.Event()

    async def work(_request: RequestUnion) -> None:
        begun.set()
        await finish.wait()
        finished.set()

    daemon.on_command = work
    async with anyio.create_task_group() as group:
        group.start_soon(command, daemon.socket, {"do": "drain"})
        with anyio.fail_after(20):
            await begun.wait()
        group.cancel_scope.cancel()
    finish.set()
    with anyio.fail_after(20):
        await finished.wait()


async def test_answers_name_the_protocol_and_another_protocol_is_not_obeyed(
    daemon: Daemon,
) -> None:
    for theirs, code, asked in (("1", 200, 1), ("2", 500, 1)):
        reply = await ask(
            daemon.socket, "/v1/command", b'{"do":"drain"}', {"X-Coordinator-Protocol": theirs}
        )
        assert (reply.status, len(daemon.asked)) == (code, asked)
        assert "X-Coordinator-Protocol: 1" in reply.head
    assert "protocol 1, not 2" in reply.json["message"]


@pytest.mark.parametrize(
    ("target", "body", "code"),
    [
        ("/v1/nothing", None, 404),
        ("/v1/command", None, 405),
        ("/v1/events?n=-1", None, 400),
        ("/v1/events?n=many", None, 400),
        ("/v1/events?n=9999999", None, 400),
        ("/v1/events?follow=yes", None, 400),
        ("/v1/logs?n=%C2%B2", None, 400),
        ("/v1/command", b"x" * 70_000, 413),
    ],
)
async def test_a_request_that_http_or_we_refuse_has_an_answer_too(
    daemon: Daemon, target: str, body: bytes | None, code: int
) -> None:
    reply = await ask(daemon.socket, target, body)
    assert (reply.status, reply.json["answer"]) == (code, "invalid")
    assert reply.json["message"]


async def test_many_requests_at_once_each_get_their_own_answer(daemon: Daemon) -> None:
    replies: list[int] = []

    async def one() -> None:
        replies.append((await command(daemon.socket, {"do": "undrain"})).status)

    async with anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(one)
    assert replies == [200] * 40
    assert len(daemon.asked) == 40
    assert (await _names(daemon)).count("control_command_received") == 40
