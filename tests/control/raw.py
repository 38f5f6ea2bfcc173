"""Speaks HTTP to the control socket without our client."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio


@dataclass(frozen=True)
class Reply:
    status: int
    head: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    path: Path,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request, one connection, the whole answer."""
    given = {"Host": "x", "Connection": "close", **(headers or {})}
    if body is not None:
        given["Content-Length"] = str(len(body))
    method = "GET" if body is None else "POST"
    lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {value}" for key, value in given.items())]
    request = "\r\n".join([*lines, "", ""]).encode() + (body or b"")
    received = b""
    with anyio.fail_after(20):
        async with await anyio.connect_unix(path) as stream:
            await stream.send(request)
            try:
                while True:
                    received += await stream.receive()
            except anyio.EndOfStream:
                pass
    head, _, rest = received.partition(b"\r\n\r\n")
    return Reply(int(head.split()[1]), head.decode(), rest)


async def command(path: Path, request: Any) -> Reply:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return await ask(path, "/v1/command", body)
