"""One HTTP/1.1 exchange over a Unix socket: a request, and an answer in our server's form.

Owns the bytes: status line, headers, a body of known length or in chunks (RFC 9112). It is strict,
and every read has a time limit, because any process may listen at a path. It must never retry.
"""

import socket
from collections.abc import Iterator, Mapping
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_VERSION = b"HTTP/1.1 "
_MAX_LINE_BYTES = 8_192
_MAX_HEADERS = 100
_READ_BYTES = 65_536
_MAX_DIGITS = 16
"""Maximum digits of a length, also in hexadecimal: it fits 64 bits."""
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class NotHttpError(ValueError):
    """The answer is not HTTP in our server's form. `client` reports it to the user."""


class Exchange:
    """A connection for one request. Use it in a `with` statement.

    All methods raise OSError, TimeoutError once `timeout_seconds` have passed, EOFError when
    the other end closes too early, and NotHttpError for an answer that breaks the rules.
    """

    def __init__(self, path: str, timeout_seconds: float) -> None:
        self._seconds = timeout_seconds
        self._deadline = monotonic() + timeout_seconds
        self._received = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names are in lower case."""
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send the request, then read the head of its answer: `status` and `headers`."""
        given = {"Host": "localhost", "Connection": "close", **headers}
        if body:
            given["Content-Length"] = str(len(body))
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {given[name]}" for name in given)]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        self.status = self._read_status()
        self.headers = self._read_headers()

    def body(self) -> bytes:
        """The whole body, within the time limit of the exchange."""
        return b"".join(self._pieces())

    def lines(self) -> Iterator[bytes]:
        """The lines of the body without line ends; each may take `timeout_seconds`."""
        rest = bytearray()
        for piece in self._pieces():
            rest += piece
            if b"\n" in piece:
                *lines, rest = rest.split(b"\n")
                yield from map(bytes, lines)
                self._deadline = monotonic() + self._seconds
        if rest:
            yield bytes(rest)

    def _read_status(self) -> int:
        while len(self._received) < len(_VERSION) and _VERSION.startswith(self._received):
            self._read_more()
        if not self._received.startswith(_VERSION):
            raise NotHttpError("the answer does not start with HTTP/1.1")
        code = self._read_line()[len(_VERSION) :].split(" ", 1)[0]
        if len(code) != len("200") or not _is_number(code):
            raise NotHttpError(f"{code[:60]!r} is not a status code")
        return int(code)

    def _read_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while line := self._read_line():
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip() or len(headers) == _MAX_HEADERS:
                raise NotHttpError(f"{line[:60]!r} is not a header")
            if name.lower() in headers:
                raise NotHttpError(f"duplicate header {name[:60]!r}")
            headers[name.lower()] = value.strip()
        return headers

    def _pieces(self) -> Iterator[bytes]:
        """The body in pieces as they arrive."""
        coding = self.headers.get("transfer-encoding")
        length = self.headers.get("content-length")
        if coding == "chunked" and length is None:
            yield from self._chunks()
        elif coding is None and length is not None and _is_number(length):
            yield from self._take(int(length))
        else:
            raise NotHttpError("the length of the body is missing or ambiguous")

    def _chunks(self) -> Iterator[bytes]:
        while size := self._chunk_size():
            yield from self._take(size)
            if self._read_line():
                raise NotHttpError("a chunk is longer than declared")
        while self._read_line():
            pass  # trailers

    def _chunk_size(self) -> int:
        digits = self._read_line().partition(";")[0].strip()
        if not 0 < len(digits) <= _MAX_DIGITS or not set(digits) <= _HEX_DIGITS:
            raise NotHttpError(f"{digits[:60]!r} is not a chunk length")
        return int(digits, 16)

    def _take(self, size: int) -> Iterator[bytes]:
        """The next `size` bytes, in pieces."""
        while size:
            if not self._received:
                self._read_more()
            piece = bytes(self._received[:size])
            del self._received[:size]
            size -= len(piece)
            yield piece

    def _read_line(self) -> str:
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > _MAX_LINE_BYTES:
                raise NotHttpError(f"a line is longer than {_MAX_LINE_BYTES} bytes")
            self._read_more()
        line = self._received[:end].removesuffix(b"\r").decode("latin-1")
        del self._received[: end + 1]
        return line

    def _read_more(self) -> None:
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        received = self._socket.recv(_READ_BYTES)
        if not received:
            raise EOFError
        self._received += received


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
