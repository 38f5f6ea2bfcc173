"""The regular look at what the kernel has for us: orphans, its OOM count, stopped trainings.

Owns nothing; it must never take the status of a child that somebody else waits for.
"""

from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread

from coordinator.process import tree
from coordinator.supervisor.slot import Services
from coordinator.supervisor.training import Training

ROUND_SECONDS = 5.0


class Rounds:
    """See the module."""

    def __init__(self, services: Services, trainings: Callable[[], Sequence[Training]]) -> None:
        self._services = services
        self._trainings = trainings
        self._ended: set[int] = set()
        """Ended children of the last round: a forked agent is our child before we know its pid."""

    async def run(self) -> None:
        """Go round for ever."""
        while True:
            await anyio.sleep(ROUND_SECONDS)
            await self.reap()
            await anyio.to_thread.run_sync(self._services.kernel.sample)
            for training in self._trainings():
                await training.look()

    async def reap(self) -> None:
        """Collect orphans of our descendants, which are ours since we are a subreaper."""
        ended = await anyio.to_thread.run_sync(tree.ended_children)
        orphans = (ended & self._ended).difference(self._services.agents.pids)
        await anyio.to_thread.run_sync(tree.reap, orphans)
        self._ended = ended
