"""The same as `stage`, drawn on a terminal: both nodes, the server, the last events.

Owns the picture, of 80 columns and at most 24 lines, and the question to each daemon for its
status, which is the question that `coordinatorctl status` asks. Nothing here changes anything.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_thread
from nodes import SLOTS, Node, coordinatorctl
from observed import Observed
from play import STEPS
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text
from stage import ACTS, sentence

from coordinator.cli.client import Client
from coordinator.cli.waiting import read_status
from coordinator.core.protocol import SlotView, StatusView
from coordinator.errors import ControlError

ASK_SECONDS = 0.5
ANSWER_SECONDS = 2.0
FEED_LINES = 6
BAR_WIDTH = 20
STATES = ("finished", "running", "preempted", "crashed", "failed")
_STYLES = {"running": "green", "finished": "green", "preempted": "yellow", "crashed": "red",
           "failed": "red", "stopping": "yellow", "closing": "yellow"}  # fmt: skip


class LiveStage:
    """See the module."""

    def __init__(
        self, console: Console, observed: Observed, nodes: Sequence[Node], runs: int
    ) -> None:
        self._console = console
        self._observed = observed
        self._nodes = nodes
        self._runs = runs
        self._began = time.monotonic()
        self._title = ""
        self._feed: deque[str] = deque(maxlen=FEED_LINES)
        self._status: dict[str, StatusView | None] = {}

    # --- what it is told ----------------------------------------------------------------------
    def act(self, number: int, title: str) -> None:
        """A new act begins."""
        self._title = f"act {number} of {ACTS}: {title}"

    def say(self, text: str) -> None:
        """Something was done that no daemon reports."""
        self._feed.append(f"{self._seconds():5.1f}  {text}")

    def happened(self, events: Sequence[dict[str, Any]]) -> None:
        """Daemons report."""
        for event in events:
            if words := sentence(event):
                self.say(words)

    # --- what it does -------------------------------------------------------------------------
    async def run(self) -> None:
        """Draw until cancelled."""
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while True:
                for node in self._nodes:
                    self._status[node.name] = await anyio.to_thread.run_sync(
                        _ask, node, abandon_on_cancel=True
                    )
                live.update(self._picture(), refresh=True)
                await anyio.sleep(ASK_SECONDS)

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    # --- the picture --------------------------------------------------------------------------
    def _picture(self) -> RenderableType:
        clock = f"{int(self._seconds()) // 60}:{int(self._seconds()) % 60:02d}"
        feed = [Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in self._feed]
        room = [Text("")] * (FEED_LINES - len(feed))
        return Group(
            Text.assemble(("wandb-coordinator demo", "bold"), f"  {clock}"),
            Text(self._title, "cyan", no_wrap=True, overflow="ellipsis"),
            Text(""),
            self._slots(),
            Text(""),
            self._server(),
            Text(""),
            *feed,
            *room,
            Text(""),
            Text("to inspect it, type in another terminal (Ctrl-C here stops everything):", "dim"),
            *(Text(line, no_wrap=True, overflow="fold") for line in hints(self._nodes[-1])),
        )

    def _slots(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
        for name in ("node", "slot", "state", "run", "step"):
            table.add_column(name, no_wrap=True)
        for node in self._nodes:
            status = self._status.get(node.name)
            if status is None:
                table.add_row(Text(node.name, "bold"), "", Text("not running", "dim"))
            for slot in status.slots if status else []:
                self._slot(table, node, slot)
            for _ in range(SLOTS - (len(status.slots) if status else 1)):
                table.add_row("")
        return table

    def _slot(self, table: Table, node: Node, slot: SlotView) -> None:
        state = slot.state.value
        word = Text(state, _STYLES.get(state, "dim"))
        stays = [stay for stay in self._observed.stays if stay.run == slot.run_id]
        step = stays[-1].step if stays else 0
        bar = self._bar(step) if slot.run_id and stays else Text("")
        table.add_row(Text(node.name, "bold"), str(slot.slot), word, slot.run_id or "", bar)

    def _bar(self, step: int) -> Text:
        full, empty = ("━", "─") if self._console.encoding.startswith("utf") else ("#", ".")
        done = BAR_WIDTH * step // STEPS
        return Text.assemble(
            (full * done, "green"), (empty * (BAR_WIDTH - done), "dim"), f" {step:2}/{STEPS}"
        )

    def _server(self) -> Text:
        known = {state: self._observed.count(state) for state in STATES}
        known["running"] += self._observed.count("reserved")  # handed out, not in wandb.init() yet
        text = Text("server  ", "dim")
        for state, count in known.items():
            if count or state != "failed":
                text.append(f"{count} {state}", _STYLES[state] if count else "dim")
                text.append("   ")
        text.append(f"{self._runs - len(self._observed.states)} not started", "dim")
        text.append(f"\n        {self._observed.duplicates} handed out to a second agent", "dim")
        return text


def _ask(node: Node) -> StatusView | None:
    try:
        return read_status(Client(node.socket), ANSWER_SECONDS)
    except ControlError:
        return None


def hints(node: Node) -> list[str]:
    """What a person can type in another terminal while the demo runs."""
    return [
        f"  export COORDINATOR_SOCKET={node.socket}",
        f"  {coordinatorctl()} status    # or: runs · leases ls · events -f",
    ]
