"""What the gateway has no interest in goes both ways as it came."""

import gzip
import json
import os

import anyio
import pytest
from aiohttp import ClientError, ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from tests.gateway.stage import SECONDS, says, staged

pytestmark = pytest.mark.anyio

VIEWER = json.dumps({"query": "query Viewer { viewer { id } }"}).encode()


async def test_without_a_known_token_nothing_passes() -> None:
    async with staged() as stage:
        stranger = stage.address.rpartition("/")[0]
        for address in (f"{stranger}/guess/graphql", f"{stranger}//graphql"):
            async with stage.client.post(address, data=VIEWER) as response:
                assert response.status in {403, 404}
        async with stage.client.get(f"{stranger}/guess/files/x") as response:
            assert response.status == 403
        async with stage.client.get(stranger.removesuffix("/a")) as response:
            assert response.status == 404
        assert stage.asked == []


async def test_an_agent_that_has_ended_is_a_stranger_too() -> None:
    async with staged() as stage:
        assert (await stage.graphql(VIEWER))[0] == 200
        stage.desk.known.clear()
        assert (await stage.graphql(VIEWER))[0] == 403
        assert len(stage.asked) == 1


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_method_path_query_and_body_arrive_as_they_were_sent(method: str) -> None:
    async with staged(base="/wandb") as stage:
        body = None if method == "GET" else b"\x00body\xff"
        path = "storage/50%25%20%23%3F%2Fdone+%C3%A4.bin?a=1&b=%2F%20x+y%26&a=2"
        assert (await stage.request(method, path, body))[0] == 200
        [asked] = stage.asked
        assert (asked.method, asked.path, asked.body) == (method, f"/wandb/{path}", body or b"")


async def test_headers_that_matter_pass_and_those_of_one_connection_do_not() -> None:
    async with staged() as stage:
        await stage.request(
            "POST", "graphql", VIEWER, Authorization="Basic abc", User_Agent="W&B Client",
            X_Wandb_Username="me", Proxy_Authorization="no", TE="trailers", Keep_Alive="1",
        )  # fmt: skip
        headers = {name.lower(): value for name, value in stage.asked[0].headers.items()}
        assert headers["authorization"] == "Basic abc"
        assert headers["user-agent"] == "W&B Client"
        assert headers["x-wandb-username"] == "me"
        assert headers["content-type"] == "application/json"
        assert headers["host"] == f"127.0.0.1:{stage.upstream.port}"
        assert not {"proxy-authorization", "te", "keep-alive"} & set(headers)


@pytest.mark.parametrize("status", [200, 201, 302, 400, 401, 404, 409, 500, 503])
@pytest.mark.parametrize("path", ["graphql", "files/e/p/r/file_stream"])
async def test_status_and_body_of_an_answer_are_passed_on(path: str, status: int) -> None:
    async with staged(says(b'{"error": "words"}', status)) as stage:
        assert (await stage.request("POST", path, VIEWER))[:2] == (status, b'{"error": "words"}')


async def test_headers_of_an_answer_to_a_file_request_are_passed_on() -> None:
    answer = says(b"x", 206, Content_Range="bytes 0-0/9", ETag='"1"', Location="/there")
    async with staged(answer) as stage:
        status, _, headers = await stage.request("GET", "storage/file")
        assert status == 206
        assert headers["Content-Range"] == "bytes 0-0/9"
        assert headers["Etag"] == '"1"'
        assert headers["Location"] == "/there"


async def test_large_binary_bodies_pass_unchanged_both_ways() -> None:
    sent, received = os.urandom(3 * 2**20), os.urandom(3 * 2**20)
    async with staged(says(received)) as stage:
        status, body, _ = await stage.request("PUT", "storage/model.bin", sent)
        assert (status, body == received) == (200, True)
        assert stage.asked[0].body == sent


async def test_an_answer_flows_while_it_is_being_made() -> None:
    seen = anyio.Event()

    async def slow(request: web.Request, _body: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await seen.wait()
        await response.write(b"second")
        return response

    async with staged(slow) as stage:
        with anyio.fail_after(SECONDS):
            async with stage.client.get(f"{stage.address}/storage/log") as response:
                assert await response.content.readexactly(5) == b"first"
                seen.set()
                assert await response.read() == b"second"


@pytest.mark.parametrize("path", ["graphql", "files/e/p/r/file_stream"])
async def test_a_compressed_body_arrives_as_it_was_sent(path: str) -> None:
    packed = gzip.compress(VIEWER)
    async with staged() as stage:
        assert (await stage.request("POST", path, packed, Content_Encoding="gzip"))[0] == 200
        [asked] = stage.asked
        assert asked.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(asked.body) == VIEWER


async def test_a_compressed_answer_is_readable() -> None:
    async with staged(says(gzip.compress(b"plain"), Content_Encoding="gzip")) as stage:
        assert (await stage.request("GET", "storage/file"))[1] == b"plain"
        assert (await stage.request("POST", "graphql", VIEWER))[1] == b"plain"


@pytest.mark.parametrize("path", ["graphql", "files/e/p/r/file_stream", "storage/x"])
async def test_a_server_that_is_down_is_a_502_with_the_reason(path: str) -> None:
    async with staged() as stage:
        await stage.upstream.die()
        status, body, _ = await stage.request("POST", path, VIEWER)
        assert status == 502
        assert json.loads(body)["error"].startswith("W&B cannot be reached: ")


async def test_a_server_that_dies_before_it_answers_is_a_502() -> None:
    async def hang_up(request: web.Request, _body: bytes) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with staged(hang_up) as stage:
        assert (await stage.request("GET", "storage/x"))[0] == 502
        assert (await stage.graphql(VIEWER))[0] == 502


async def test_an_answer_that_is_cut_off_is_an_error_and_never_looks_whole() -> None:
    async def cut(request: web.Request, _body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"only this")
        assert request.transport is not None
        request.transport.close()
        return response

    async with staged(cut) as stage:
        with pytest.raises((ClientPayloadError, ClientError, HttpProcessingError)) as caught:
            await stage.request("GET", "storage/x")
        assert "HTTP/1.1" not in str(caught.value), "no second answer behind half of the first"
        assert (await stage.graphql(VIEWER))[0] == 502


@pytest.mark.parametrize(
    ("said", "passed"),
    [("7", "7"), ("0", "0"), ("Wed, 21 Oct 2020 07:28:00 GMT", "0"), ("soon", None)],
)
async def test_the_time_that_a_server_asks_for_is_passed_on(said: str, passed: str | None) -> None:
    async with staged(says(b"{}", 429, Retry_After=said)) as stage:
        status, _, headers = await stage.request("POST", "graphql", VIEWER)
        assert (status, headers.get("Retry-After")) == (429, passed)


async def test_only_this_machine_can_reach_the_gateway() -> None:
    async with staged() as stage:
        assert stage.address.startswith("http://127.0.0.1:")
