"""The HTTP of the client: what our server sends is read, and everything else ends at once."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coordinator.cli.exchange import Exchange, NotHttpError

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def _server(
    place: Path, sent: Sequence[bytes], *, hold: bool = False
) -> Iterator[tuple[str, list[bytes]]]:
    """Answers one client with `sent`, piece by piece; `hold`: and then keeps the line open."""
    path = str(place / "s")
    asked: list[bytes] = []
    done = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(65_536))
            with suppress(ConnectionError):  # the client has left
                for piece in sent:
                    connection.sendall(piece)
                    done.wait(0.002)
            if hold:
                done.wait(20)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield path, asked
        finally:
            done.set()
            thread.join()


def _body(place: Path, sent: Sequence[bytes], *, hold: bool = False) -> bytes:
    with _server(place, sent, hold=hold) as (path, _), Exchange(path, 5.0) as exchange:
        exchange.send("GET", "/v1/x", {}, b"")
        return exchange.body()


def _lines(place: Path, sent: Sequence[bytes]) -> list[bytes]:
    with _server(place, sent) as (path, _), Exchange(path, 5.0) as exchange:
        exchange.send("GET", "/v1/x", {}, b"")
        return list(exchange.lines())


def test_the_request_is_one_that_every_http_server_takes(place: Path) -> None:
    answer = HEAD + b"X-One: 1\r\ncontent-LENGTH: 2\r\n\r\n{}"
    with _server(place, [answer]) as (path, asked), Exchange(path, 5.0) as exchange:
        exchange.send("POST", "/v1/command", {"X-Protocol": "1"}, b"{}")
        assert (exchange.status, exchange.headers["x-one"], exchange.body()) == (200, "1", b"{}")
    lines = [
        b"POST /v1/command HTTP/1.1",
        b"Host: localhost",
        b"Connection: close",
        b"X-Protocol: 1",
        b"Content-Length: 2",
    ]
    assert asked == [b"\r\n".join([*lines, b"", b"{}"])]


def test_an_answer_may_come_byte_by_byte(place: Path) -> None:
    answer = HEAD + b"Content-Length: 12\r\n\r\nhello\r\nworld"
    assert _body(place, [answer[at : at + 1] for at in range(len(answer))]) == b"hello\r\nworld"
    chunked = CHUNKED + b"6;note=x\r\nhello\n\r\n05\r\nworld\r\n0\r\nTrailer: x\r\n\r\n"
    path = place / "s"
    path.unlink()
    assert _body(place, [chunked[at : at + 1] for at in range(len(chunked))]) == b"hello\nworld"


def test_lines_are_put_together_across_chunks(place: Path) -> None:
    pieces = [CHUNKED, b"4\r\na\nbb\r\n", b"3\r\nb\n\n\r\n", b"2\r\ncc\r\n", b"0\r\n\r\n"]
    assert _lines(place, pieces) == [b"a", b"bbb", b"", b"cc"]


@pytest.mark.parametrize(
    "sent",
    [
        b"220 mail.example ESMTP",
        b"\x00\xff",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b" Folded: x\r\n\r\n",
        HEAD + b"Space : x\r\n\r\n",
        HEAD + b"A: 1\r\na: 2\r\n\r\n",
        HEAD + b"x" * 9_000,
        HEAD + b"".join(b"N%d: x\r\n" % number for number in range(200)) + b"\r\n",
        HEAD + b"\r\n",
        HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: +1\r\n\r\n",
        HEAD + b"Content-Length: 1, 1\r\n\r\n",
        HEAD + b"Content-Length: 99999999999999999999\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        CHUNKED + b"x\r\n",
        CHUNKED + b"-1\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"0x1\r\n",
        CHUNKED + b"1\r\nab\r\n",
    ],
)
def test_an_answer_that_is_not_our_http_is_reported_at_once(place: Path, sent: bytes) -> None:
    with pytest.raises(NotHttpError) as caught:
        _body(place, [sent], hold=True)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP",
        HEAD,
        HEAD + b"Content-Length: 3\r\n\r\nab",
        CHUNKED,
        CHUNKED + b"3\r\nab",
        CHUNKED + b"2\r\nab\r\n",
        CHUNKED + b"2\r\nab\r\n0\r\n",
    ],
)
def test_a_truncated_answer_is_not_an_answer(place: Path, sent: bytes) -> None:
    with pytest.raises(EOFError):
        _body(place, [sent])


@pytest.mark.parametrize("sent", [[], [HEAD], [CHUNKED + b"1\r\n"], [b"H"]])
def test_silence_ends_in_time(place: Path, sent: list[bytes]) -> None:
    def ask(path: str) -> bytes:
        with Exchange(path, 0.2) as exchange:
            exchange.send("GET", "/", {}, b"")
            return exchange.body()

    with _server(place, sent, hold=True) as (path, _), pytest.raises(TimeoutError):
        ask(path)


def test_an_answer_that_drips_for_ever_ends_in_time(place: Path) -> None:
    drops = [HEAD + b"Content-Length: 900\r\n\r\n", *[b"x"] * 900]
    with _server(place, drops) as (path, _), Exchange(path, 0.3) as exchange:
        exchange.send("GET", "/", {}, b"")
        with pytest.raises(TimeoutError):
            exchange.body()


def test_a_reader_that_is_slow_itself_does_not_run_out_of_time(place: Path) -> None:
    pieces = [CHUNKED, b"2\r\na\n\r\n", b"2\r\nb\n\r\n", b"0\r\n\r\n"]
    with _server(place, pieces, hold=True) as (path, _), Exchange(path, 0.2) as exchange:
        exchange.send("GET", "/", {}, b"")
        lines = exchange.lines()
        assert next(lines) == b"a"
        threading.Event().wait(0.4)
        assert list(lines) == [b"b"]
