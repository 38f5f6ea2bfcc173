"""Watches whether the sweep still hands out work.

Owns the answer to "is the sweep over?". The server says so with an `exit` to an idle agent; the
sweep's state is asked to be sure, and again now and then while it is over: somebody may resume it.
"""

import anyio
import structlog

from coordinator.core.model import SweepPath, SweepState
from coordinator.errors import CoordinatorError
from coordinator.supervisor.level import Level
from coordinator.wandb_account import Account
from coordinator.wandb_account.questions import NoSuchSweepError

log = structlog.get_logger()

LOOK_AGAIN_SECONDS = 30.0
RETRY_SECONDS = 2.0


class SweepWatch:
    """See the module."""

    def __init__(
        self, account: Account, path: SweepPath, state: SweepState, changed: Level
    ) -> None:
        self._account = account
        self._path = path
        self._changed = changed
        self._doubt = anyio.Event()
        self.state = state
        self.over = state.is_over
        self.trouble = ""
        """Why the state could not be asked; "" when it could."""

    def ended(self) -> None:
        """The server sent an agent away, or does not know it: look at the sweep."""
        self._doubt.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self.over:
                with anyio.move_on_after(LOOK_AGAIN_SECONDS):
                    await self._doubt.wait()
            else:
                await self._doubt.wait()
            self._doubt = anyio.Event()
            while not await self._look():  # noqa: ASYNC110 - it asks a server
                await anyio.sleep(RETRY_SECONDS)

    async def _look(self) -> bool:
        """Ask for the state; False when the answer is owed still."""
        try:
            state, over = await self._account.sweep_state(self._path), False
        except NoSuchSweepError:
            state, over = SweepState.UNKNOWN, True
            self.trouble = "the sweep was deleted, or the key may not see it any more"
        except CoordinatorError as error:
            self.trouble = str(error)
            return False
        else:
            over, self.trouble = state.is_over, ""
        if (state, over) != (self.state, self.over):
            hint = f"wandb sweep --resume {self._path}" if over else ""
            log.info("sweep_state_changed", state=state, before=self.state, over=over, hint=hint)
        self.state, self.over = state, over
        self._changed.bump()
        return True
