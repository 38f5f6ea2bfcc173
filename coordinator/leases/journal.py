"""The journal: every token on disk before a request bears it, until its release is answered.

Owns the files `TOKEN.json` in one directory, each written whole (new file, fsync, rename, fsync of
the directory; without the syncs where a power cut does not matter). It must never talk to Redis.
All methods block: async callers use a thread.
"""

import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from coordinator.core.lease import Claim, DropReason, Lease
from coordinator.core.model import CommandKind, Outcome

JOURNAL_VERSION = 1


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One claim. Old forms are kept in tests/data and must load."""

    token: str
    run_id: str
    kind: CommandKind
    slot: int
    program: str
    args: dict[str, Any]
    state: Literal["acquiring", "held", "releasing"]
    fence: int = 0
    """0 while unknown."""
    outcome: Outcome | None = None
    """Set with "releasing"; None for a claim that never ran."""
    dropped: DropReason | None = None
    """Set with "releasing" when the claim was dropped for another holder."""
    version: int = JOURNAL_VERSION

    @classmethod
    def of(cls, claim: Claim, token: str) -> "JournalEntry":
        """The entry that precedes the first request of `claim`."""
        return cls(
            token=token,
            run_id=claim.run_id,
            kind=claim.kind,
            slot=claim.slot,
            program=claim.program,
            args=dict(claim.args),
            state="acquiring",
        )

    @property
    def claim(self) -> Claim:
        """What the W&B server had handed out."""
        return Claim(self.run_id, self.kind, self.slot, self.program, self.args)

    @property
    def lease(self) -> Lease:
        """The lease, with fence 0 while unknown."""
        return Lease(self.run_id, self.kind, self.token, self.fence, self.slot)


class Journal:
    """The entries of one node for one sweep."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> tuple[list[JournalEntry], list[Path]]:
        """All entries, and the files that could not be read (kept for a person to look at)."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries, broken = list[JournalEntry](), list[Path]()
        for path in sorted(self._directory.glob("*.json")):
            try:
                entries.append(msgspec.json.decode(path.read_bytes(), type=JournalEntry))
            except (msgspec.DecodeError, OSError):
                broken.append(path)
        return entries, broken

    def put(self, entry: JournalEntry, durable: bool = True) -> None:
        """Written when it returns, and safe from a power cut if `durable`. Raises OSError."""
        path = self._path(entry.token)
        part = path.with_suffix(".part")
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(entry))
            file.flush()
            if durable:
                os.fsync(handle)
        part.replace(path)
        if durable:
            self._sync_directory()

    def remove(self, token: str) -> None:
        """Forget `token`. Not synced: an entry that returns is only released once more."""
        self._path(token).unlink(missing_ok=True)

    def _path(self, token: str) -> Path:
        return self._directory / f"{token}.json"

    def _sync_directory(self) -> None:
        handle = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
