"""The daemon's own requests to the W&B server: checks of the key, states of sweep and runs.

Owns only the daemon's own requests; what agents send goes through the gateway. Every request has a
time limit.
"""

import os
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import aiohttp

from coordinator.core import wire
from coordinator.core.model import SweepPath, SweepState
from coordinator.core.sweep import SweepWork
from coordinator.errors import PeerError, UserError
from coordinator.wandb_account.login import Login

ANSWER_SECONDS = 20.0
REFUSED = frozenset({401, 403})
NOT_FOUND = 404


class KeyRefusedError(UserError):
    """the W&B server refused the API key"""

    def __init__(self, base_url: str, words: str) -> None:
        super().__init__(
            f"{base_url} refused the W&B API key ({words or 'no reason given'}): "
            "check WANDB_API_KEY or run `wandb login --relogin`"
        )


class NoSuchSweepError(UserError):
    """the W&B server has no such sweep"""

    def __init__(self, base_url: str, sweep: SweepPath) -> None:
        super().__init__(
            f"--sweep {sweep}: {base_url} has no such sweep, or this API key has no access to it; "
            "copy ENTITY/PROJECT/SWEEP_ID from the sweep's page"
        )


class UpstreamUnreachableError(PeerError):
    """the W&B server cannot be reached"""

    def __init__(self, base_url: str, problem: str) -> None:
        super().__init__(
            f"{base_url} cannot be reached: {problem}; check the network and WANDB_BASE_URL"
        )


class OddAnswerError(PeerError):
    """the W&B server does not report the queued runs of a sweep"""

    def __init__(self, base_url: str) -> None:
        super().__init__(f"{base_url} does not report which runs of the sweep are queued")


def _words(error: Exception) -> str:
    """The error in words, without the library's notation."""
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number else str(error.os_error)
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_SECONDS:g} s"
    return str(error) or type(error).__name__


class Account:
    """Requests with one login."""

    def __init__(self, login: Login, session: aiohttp.ClientSession) -> None:
        self._login = login
        self._session = session

    async def sweep_state(self, sweep: SweepPath) -> SweepState:
        """The sweep's state.

        Raises KeyRefusedError, NoSuchSweepError, UpstreamUnreachableError.
        """
        names = {"entity": sweep.entity, "project": sweep.project, "sweep": sweep.name}
        body = await self._ask(wire.SWEEP_STATE, names)
        state = wire.sweep_facts(body)
        if state is None:
            raise NoSuchSweepError(self._login.base_url, sweep)
        return state

    async def sweep_work(self, sweep: SweepPath) -> SweepWork:
        """The sweep's state, its runs so far and those queued again.

        Raises KeyRefusedError, OddAnswerError, UpstreamUnreachableError.
        """
        names = {"entity": sweep.entity, "project": sweep.project, "sweep": sweep.name,
                 "filters": wire.queued_runs_filter(sweep.name)}  # fmt: skip
        work = wire.sweep_work(await self._ask(wire.SWEEP_WORK, names))
        if work is None:  # does not prove that the sweep is gone
            raise OddAnswerError(self._login.base_url)
        return work

    async def run_state(self, sweep: SweepPath, run_id: str) -> str | None:
        """The run's state in upper case, None if the server does not know it.

        Raises KeyRefusedError, UpstreamUnreachableError.
        """
        names = {"entity": sweep.entity, "project": sweep.project, "run": run_id}
        return wire.run_state(await self._ask(wire.RUN_STATE, names))

    async def run_life(self, sweep: SweepPath, run_id: str) -> tuple[str | None, float | None]:
        """The run's state, and the seconds since its last heartbeat by our clock.

        Raises KeyRefusedError, UpstreamUnreachableError.
        """
        names = {"entity": sweep.entity, "project": sweep.project, "run": run_id}
        body = await self._ask(wire.RUN_STATE, names)
        heard = wire.run_heartbeat(body)
        age = None if heard is None else (datetime.now(UTC) - heard).total_seconds()
        return wire.run_state(body), age

    async def _ask(self, text: str, variables: Mapping[str, Any]) -> bytes:
        url = self._login.base_url
        credentials = b64encode(f"api:{self._login.api_key}".encode()).decode()
        try:
            async with self._session.post(
                f"{url}/graphql",
                data=wire.question(text, variables),
                headers={
                    "Content-Type": "application/json",
                    "Authorization": f"Basic {credentials}",
                },
                timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
            ) as response:
                body = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UpstreamUnreachableError(url, _words(error)) from error
        if status in REFUSED:
            raise KeyRefusedError(url, wire.error_text(body))
        if status >= 400 and status != NOT_FOUND:  # noqa: PLR2004 - the class of client errors
            raise UpstreamUnreachableError(url, f"HTTP {status} {wire.error_text(body)}".strip())
        return body
