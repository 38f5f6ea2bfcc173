"""A level-triggered wake-up: "something changed, look again"."""

import anyio


class Level:
    """Many wait, anyone bumps; who looks after waking sees at least the state at the bump."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def bump(self) -> None:
        """Wake everybody who waits."""
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next bump; check the condition before and after it."""
        # No await may stand between the check and this call, or a bump is missed.
        await self._event.wait()
