"""What every training needs and none can mend: room on the disks and an API key.

Owns the reason why claims are held up because of them. A run that fails meanwhile is not to blame,
nor is its node.
"""

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from coordinator.errors import CoordinatorError, UserError

log = structlog.get_logger()

LOOK_SECONDS = 5.0
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
TRIAL_BYTES = 65536
"""More than one block: what is written to see whether there is room again."""


class Premises:
    """See the module."""

    def __init__(
        self,
        folders: Sequence[Path],
        min_free_bytes: int,
        try_key: Callable[[], Awaitable[object]],
        changed: Callable[[], None],
    ) -> None:
        """`folders`: where we and trainings write, the state directory first.

        `try_key` raises UserError when W&B has no use for the key, PeerError when it does not say.
        """
        self._folders = folders
        self._min_free = min_free_bytes
        self._try_key = try_key
        self._changed = changed
        self._written_full = False
        """A write has failed, whatever the file system says of free space (a quota, a race)."""
        self._key_doubted = False
        self._looking = anyio.Lock()
        self.trouble = ""
        """Why nothing is claimed; "" when all is well."""

    def noticed(self, error: OSError) -> bool:
        """A write of ours failed; True when that is for want of room."""
        if error.errno not in NO_ROOM:
            return False
        self._written_full = True
        self._set(_no_room(error.filename or self._folders[0]))
        return True

    def doubt_key(self) -> None:
        """W&B has refused a request: look at the key."""
        self._key_doubted = True

    async def look(self) -> str:
        """Look at everything that is in doubt; why nothing is to be claimed."""
        async with self._looking:
            trouble = await anyio.to_thread.run_sync(self._disks)
            if not trouble and self._key_doubted:
                trouble = await self._key()
            self._set(trouble)
        return trouble

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await self.look()
            await anyio.sleep(LOOK_SECONDS)

    def _disks(self) -> str:
        """Blocks."""
        if self._written_full:
            try:
                self._trial()
            except OSError as error:
                return _no_room(error.filename or self._folders[0])
            self._written_full = False
        for folder in self._folders:
            with suppress(OSError):
                seen = os.statvfs(folder)
                free = seen.f_bavail * seen.f_frsize
                if free < self._min_free:
                    return f"{folder}: only {free} bytes are free ([breaker] min_free_bytes)"
        return ""

    def _trial(self) -> None:
        path = self._folders[0] / "trial"
        try:
            path.write_bytes(b"\0" * TRIAL_BYTES)
        finally:
            path.unlink(missing_ok=True)

    async def _key(self) -> str:
        try:
            await self._try_key()
        except UserError as error:
            return str(error)
        except CoordinatorError:  # W&B does not say; what we believed stands
            return self.trouble
        self._key_doubted = False
        return ""

    def _set(self, trouble: str) -> None:
        if trouble == self.trouble:
            return
        held, self.trouble = bool(self.trouble), trouble
        if trouble and not held:
            log.error("claims_held", reason=trouble)
        elif not trouble:
            log.info("claims_freed")
        self._changed()


def _no_room(path: object) -> str:
    return f"{path}: no space left on its disk, or its quota is used up"
