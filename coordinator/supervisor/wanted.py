"""What people asked of the node with coordinatorctl: kept for the successor of a killed daemon.

Owns one file. A daemon that ends by itself removes it, so that the configuration holds again; one
that was killed, or replaced while its trainings lived, is succeeded by one that wants the same.
"""

from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog

from coordinator.supervisor.files import put_whole

log = structlog.get_logger()


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The desired state of a node."""

    configured_slots: int
    """What the configuration said then: who changes it wants that, and no older `scale`."""
    slots: int
    paused: bool = False
    draining: bool = False


class WantedFile:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load(self, configured_slots: int) -> Wanted:
        """What the last daemon was asked for, if it was killed; else what is configured."""
        configured = Wanted(configured_slots=configured_slots, slots=configured_slots)
        try:
            content = await anyio.Path(self._path).read_bytes()
            found = msgspec.json.decode(content, type=Wanted)
        except FileNotFoundError:
            return configured
        except (OSError, msgspec.DecodeError) as error:
            log.warning("wanted_unreadable", file=str(self._path), error=str(error))
            return configured
        if found.configured_slots != configured_slots:
            found = msgspec.structs.replace(
                found, configured_slots=configured_slots, slots=configured_slots
            )
        if found != configured:
            log.warning("wanted_restored", slots=found.slots, paused=found.paused,
                        draining=found.draining)  # fmt: skip
        return found

    async def put(self, wanted: Wanted) -> None:
        """On disk when it returns, if there is room."""
        try:
            await anyio.to_thread.run_sync(put_whole, self._path, msgspec.json.encode(wanted))
        except OSError as error:
            log.warning("wanted_not_written", file=str(self._path), error=error.strerror)

    async def remove(self) -> None:
        """The daemon ends by itself."""
        with suppress(OSError):
            await anyio.Path(self._path).unlink(missing_ok=True)
