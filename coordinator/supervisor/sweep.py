"""Watches whether the sweep still hands out work.

Owns the answer to "is the sweep over?". The server says so with an `exit` to an idle agent; the
sweep's state is asked to be sure, and again now and then while it is over: somebody may resume it.
"""

import anyio
import structlog

from coordinator.core.model import SweepPath, SweepState
from coordinator.errors import CoordinatorError
from coordinator.supervisor.level import Level
from coordinator.supervisor.revival import Revival, Verdict
from coordinator.wandb_account import Account
from coordinator.wandb_account.questions import NoSuchSweepError

log = structlog.get_logger()

LOOK_AGAIN_SECONDS = 30.0
RETRY_SECONDS = 2.0
DELETED_AFTER_ASKS = 5
"""In a row: a proxy or a server that is being upgraded answers 404 once, too."""


class SweepWatch:
    """See the module."""

    def __init__(
        self,
        account: Account,
        path: SweepPath,
        state: SweepState,
        changed: Level,
        revival: Revival,
    ) -> None:
        self._account = account
        self._path = path
        self._changed = changed
        self._revival = revival
        self._doubt = anyio.Event()
        self._looking = False
        self._unknown_asks = 0
        self.state = state
        self.over = state.is_over
        self.deleted = False
        """The server has not known the sweep for a while."""
        self.trouble = ""
        """Why the state could not be asked; "" when it could."""
        if self.over:
            self._doubt.set()

    @property
    def undecided(self) -> bool:
        """A look is owed or under way; a sweep that is over may go on after it."""
        return self._looking or self._doubt.is_set()

    @property
    def closed(self) -> bool:
        """Nothing may be trained any more, not even what we could rescue."""
        return self.deleted or self.state is SweepState.CANCELED

    def ended(self) -> None:
        """The server sent an agent away, or lost it, or queued a run: look at the sweep."""
        self._doubt.set()

    async def asked_is_over(self) -> bool:
        """What the server says just now. Raises CoordinatorError when it does not."""
        return (await self._account.sweep_state(self._path)).is_over

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self.over:
                with anyio.move_on_after(LOOK_AGAIN_SECONDS):
                    await self._doubt.wait()
            else:
                await self._doubt.wait()
            self._doubt, self._looking = anyio.Event(), True
            while not await self._look():  # noqa: ASYNC110 - it asks a server
                await anyio.sleep(RETRY_SECONDS)
            self._looking = False
            self._changed.bump()

    async def _look(self) -> bool:
        """Ask for the state; False when the answer is owed still."""
        try:
            state = await self._account.sweep_state(self._path)
            if state.is_over and await self._revival.consider() is not Verdict.LEFT:
                return False
        except NoSuchSweepError:
            return self._not_known()
        except CoordinatorError as error:
            self.trouble = str(error)
            return False
        self.trouble, self.deleted, self._unknown_asks = "", False, 0
        self._take(state, state.is_over)
        return True

    def _not_known(self) -> bool:
        self._unknown_asks += 1
        if self._unknown_asks < DELETED_AFTER_ASKS:
            return False
        self.trouble = "the sweep was deleted, or the key may not see it any more"
        if not self.deleted:
            log.error("sweep_deleted", sweep=str(self._path), asks=self._unknown_asks)
        self.deleted = True
        self._take(SweepState.UNKNOWN, over=True)
        return True

    def _take(self, state: SweepState, over: bool) -> None:
        if (state, over) != (self.state, self.over):
            hint = f"wandb sweep --resume {self._path}" if over and not self.deleted else ""
            log.info("sweep_state_changed", state=state, before=self.state, over=over, hint=hint)
        self.state, self.over = state, over
        self._changed.bump()
