"""What the nodes of a sweep know together besides leases: its breaker, its pace, quarantined runs,
and what each run has been through.

Owns the calls of `breaker.lua`, `pace.lua`, `strike.lua` and `stays.lua`. It must never decide: the
rules are in `core.breaker`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from coordinator.core.breaker import Breaker
from coordinator.core.lease import LeaseSettings
from coordinator.errors import PeerError
from coordinator.leases.keys import Keys
from coordinator.leases.scripts import Scripts
from coordinator.leases.sight import explain
from coordinator.leases.store import REGISTRY_SECONDS, TROUBLE

if TYPE_CHECKING:
    from coordinator.leases.connection import Client

STAYS_KEPT: Final = 50
_KEEP: Final = 86_400_000
_LONGEST_TURN: Final = 5000
"""Milliseconds; as long as a node waits between two questions that the server has no work for."""
_decode = msgspec.json.Decoder(Breaker)


@dataclass(frozen=True, slots=True)
class SharedBreaker:
    """The sweep's breaker as it was at `now_seconds` of the server's clock."""

    breaker: Breaker
    version: str
    now_seconds: float


class Shared:
    """See the module. Every method raises PeerError when Redis does not answer."""

    def __init__(
        self,
        client: "Client",
        keys: Keys,
        settings: LeaseSettings,
        scripts: Scripts,
        renewed: Callable[[], bool],
    ) -> None:
        """`renewed` tells whether the leases are: a daemon that was stopped renews them first."""
        self._client = client
        self._keys = keys
        self._settings = settings
        self._scripts = scripts
        self._renewed = renewed

    async def breaker(self) -> SharedBreaker:
        """The breaker now."""
        return (await self._breaker("", ""))[1]

    async def swap(self, seen: SharedBreaker, new: Breaker) -> tuple[bool, SharedBreaker]:
        """Change it to `new` if nobody has changed it since it was `seen`; what it is now."""
        return await self._breaker(seen.version, msgspec.json.encode(new).decode())

    async def pace(self, per_second: float, burst: int) -> float:
        """Count one question for work; seconds to wait and ask again if it may not be sent yet."""
        keys = [self._keys.pace, self._keys.epoch, self._keys.turn]
        args: list[str | int] = [f"{1000 / per_second:.3f}", burst, _LONGEST_TURN]
        reply = await self._run("pace", keys, args)
        return int(reply[2]) / 1000

    async def strike(self, run_id: str, most: int, why: str) -> bool:
        """A resumed run has failed again; True when it is quarantined by this."""
        return (await self._strike(run_id, "strike", most, why))[1]

    async def clear_strikes(self, run_id: str) -> None:
        """A resumed run has not failed."""
        await self._strike(run_id, "clear", 0, "")

    async def pardon(self, run_id: str) -> bool:
        """Let a quarantined run be trained again; False when it was not quarantined."""
        return (await self._strike(run_id, "pardon", 0, ""))[1]

    async def add_stay(self, run_id: str, stay: str) -> None:
        """A stay of a run has ended; one line, for `stays` on any node."""
        await self._stays(run_id, stay)

    async def stays(self, run_id: str) -> list[str]:
        """The last stays of a run that have ended, on all nodes, oldest first."""
        return await self._stays(run_id, "")

    async def _stays(self, run_id: str, stay: str) -> list[str]:
        keys = [self._keys.run(run_id), self._keys.epoch]
        args: list[str | int] = [stay, STAYS_KEPT, round(REGISTRY_SECONDS * 1000)]
        return str((await self._run("stays", keys, args))[2]).splitlines()

    async def _strike(self, run_id: str, what: str, most: int, why: str) -> tuple[int, bool]:
        keys = [self._keys.run(run_id), self._keys.rescue, self._keys.epoch]
        args: list[str | int] = [run_id, what, most, why, round(REGISTRY_SECONDS * 1000)]
        reply = await self._run("strike", keys, args)
        return int(reply[2]), int(reply[3]) == 1

    async def _breaker(self, version: str, state: str) -> tuple[bool, SharedBreaker]:
        keys = [self._keys.breaker, self._keys.epoch]
        args: list[str | int] = [version, state, _KEEP]
        reply = await self._run("breaker", keys, args)
        now, _, changed, version, state = reply
        try:
            breaker = _decode.decode(state) if state else Breaker()
        except msgspec.MsgspecError:  # of another version: it starts anew rather than stops us
            breaker = Breaker()
        return int(changed) == 1, SharedBreaker(breaker, str(version), int(now) / 1000)

    async def _run(self, name: str, keys: Sequence[str], args: Sequence[str | int]) -> list[Any]:
        if not self._renewed():
            raise PeerError("Redis: out of sight, or its leases are to be renewed first")
        try:
            with anyio.fail_after(self._settings.timeout_seconds):
                return await self._scripts.run(self._client, name, keys, args)
        except TROUBLE as error:
            raise PeerError(f"Redis: {explain(error, self._settings)}") from error
