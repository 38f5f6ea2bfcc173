"""Commands that were fetched and have not been started: nobody else knows of them.

Owns one file, which at any moment has all of them: the server would keep their runs reserved for an
hour if the daemon were killed and nobody knew. A command stays in it until the lease of its run is
ours (the journal has it then), another node can take it, or it is dropped for a reason.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import structlog

from coordinator.core import wire
from coordinator.core.wire import TrainCommand
from coordinator.leases import Claim
from coordinator.supervisor.files import put_whole

log = structlog.get_logger()


def train_command(claim: Claim) -> TrainCommand:
    """The command of a claim that was journalled, as the server had given it."""
    raw = {"type": claim.kind.value, "run_id": claim.run_id, "program": claim.program,
           "args": dict(claim.args)}  # fmt: skip
    return TrainCommand(claim.kind, claim.run_id, claim.program, claim.args, raw)


class Undelivered:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commands: dict[str, TrainCommand] = {}
        self._writing = anyio.Lock()

    async def load(self) -> list[TrainCommand]:
        """What the last daemon left; [] when there is no file. A damaged one is set aside."""
        file = anyio.Path(self._path)
        try:
            commands = msgspec.json.decode(await file.read_bytes(), type=list[dict[str, Any]])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            aside = self._path.with_suffix(".broken")
            log.warning("undelivered_unreadable", file=str(aside), error=str(error))
            with suppress(OSError):
                await file.replace(aside)
            return []
        orders = wire.parse_orders(wire.heartbeat_answer("", commands))
        found = list(orders.train) if orders else []
        self._commands = {command.run_id: command for command in found}
        return found

    async def keep(self, *commands: TrainCommand) -> None:
        """In the file when it returns. Not synced: it is to outlive the daemon, not the machine."""
        self._commands |= {command.run_id: command for command in commands}
        await self._write()

    def has(self, run_id: str) -> bool:
        """Whether a command for this run is kept."""
        return run_id in self._commands

    async def settle(self, *run_ids: str) -> None:
        """These are somebody's now."""
        known = [self._commands.pop(run_id, None) for run_id in run_ids]
        if any(known):
            await self._write()

    def leave(self) -> None:
        """Say what the next daemon is to start first."""
        if self._commands:
            log.warning("claims_left", run_ids=list(self._commands), file=str(self._path))

    async def _write(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._writing:
                content = msgspec.json.encode([dict(c.raw) for c in self._commands.values()])
                try:
                    await anyio.to_thread.run_sync(self._put, content)
                except OSError as error:
                    log.warning("undelivered_not_written", file=str(self._path),
                                error=error.strerror)  # fmt: skip

    def _put(self, content: bytes) -> None:
        if content == b"[]":
            self._path.unlink(missing_ok=True)
            return
        put_whole(self._path, content, durable=False)
