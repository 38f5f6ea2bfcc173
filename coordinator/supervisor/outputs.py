"""What trainings print: `coordinatorctl logs`.

Owns the reading of the output files; each belongs to one agent, so to one run.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread

from coordinator.core.protocol import LogLine
from coordinator.errors import UserError
from coordinator.supervisor.pool import Pool
from coordinator.supervisor.training import Training

FOLLOW_SECONDS = 0.3
LONGEST_PAST = 1024 * 1024


class NoSuchTargetError(UserError):
    """no training of that name runs here"""

    def __init__(self, target: str) -> None:
        super().__init__(f"{target!r} is no slot or run ID with a training; see `status`")


class Outputs:
    """Reads for one node."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def read(self, target: str | None, count: int, follow: bool) -> AsyncIterator[LogLine]:
        """The last `count` lines of each training that is meant, then those to come."""
        positions: dict[Path, int] = {}
        if target is not None and not self._meant(target):
            raise NoSuchTargetError(target)
        for training in self._meant(target):
            lines, positions[training.agent.output] = await anyio.to_thread.run_sync(
                _tail, training.agent.output, count
            )
            for line in lines:
                yield LogLine(training.slot, training.run_id, line)
        known = {training.agent.output: training for training in self._meant(target)}
        while follow:
            await anyio.sleep(FOLLOW_SECONDS)
            known |= {training.agent.output: training for training in self._meant(target)}
            for path, training in list(known.items()):
                lines, positions[path] = await anyio.to_thread.run_sync(
                    _since, path, positions.get(path, 0)
                )
                for line in lines:
                    yield LogLine(training.slot, training.run_id, line)

    def _meant(self, target: str | None) -> list[Training]:
        return [
            training
            for training in self._pool.trainings
            if target in {None, "all", str(training.slot), training.run_id}
        ]


def _tail(path: Path, count: int) -> tuple[list[str], int]:
    try:
        size = path.stat().st_size
    except OSError:
        return [], 0
    lines, position = _since(path, max(0, size - LONGEST_PAST))
    return lines[-count:] if count else [], position


def _since(path: Path, position: int) -> tuple[list[str], int]:
    """Whole lines from `position` on, and where the next one begins."""
    try:
        with path.open("rb") as file:
            file.seek(position)
            data = file.read(LONGEST_PAST)
    except OSError:
        return [], position
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), position + len(whole)
