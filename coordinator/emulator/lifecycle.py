"""How a run's state follows from what its training process reports, or from its silence.

Owns the state table of W&B's documentation on signals and preemption, and the reading of
`file_stream` posts. Works on one run at a time; it must never know sweeps' queues, agents or HTTP.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from coordinator.emulator.records import Run, RunState

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_CODE_OF_CTRL_C: Final = 255
"""What wandb's exit hook reports when a KeyboardInterrupt ended the process."""

_HISTORY: Final = "wandb-history.jsonl"
_EVENTS: Final = "wandb-events.jsonl"
_SUMMARY: Final = "wandb-summary.json"
_OUTPUT: Final = "output.log"


class Chunk(msgspec.Struct, frozen=True):
    """Lines of one file; `offset` counts lines."""

    offset: int = 0
    content: list[str] | str = ""

    @property
    def lines(self) -> list[str]:
        """The content, as lines."""
        return self.content if isinstance(self.content, list) else [self.content]


class Post(msgspec.Struct, frozen=True):
    """The body of a `file_stream` POST; keys that say nothing about state are ignored."""

    files: dict[str, Chunk] | None = None
    complete: bool | None = None
    exitcode: int | None = None
    preempting: bool | None = None


def state_after_exit(run: Run, exit_code: int) -> RunState:
    """The state of a run whose process reported its end."""
    if exit_code == 0:
        return RunState.FINISHED
    if run.stop_requested:
        return RunState.KILLED
    if run.preempting:
        return RunState.PREEMPTED
    if exit_code == EXIT_CODE_OF_CTRL_C:
        return RunState.KILLED
    return RunState.FAILED


def state_after_silence(run: Run) -> RunState:
    """The state of a run that was not heard of for too long."""
    if run.stop_requested:
        return RunState.KILLED
    return RunState.PREEMPTED if run.preempting else RunState.CRASHED


def take_in(run: Run, post: Post) -> None:
    """Store what a post says about a run's history, summary, events and output."""
    for name, chunk in (post.files or {}).items():
        lines = [line for line in chunk.lines if line.strip()]
        if name == _HISTORY:
            run.history = _written(run.history, chunk.offset, lines)
            run.rows_received += len(lines)
        elif name == _EVENTS:
            run.events = _written(run.events, chunk.offset, lines)
        elif name == _SUMMARY and lines:
            run.summary = json.loads(lines[-1])
        elif name == _OUTPUT:
            run.log_lines = max(run.log_lines, chunk.offset + len(chunk.lines))


def _written(lines: list[str], offset: int, new: Sequence[str]) -> list[str]:
    """A stream after a write at `offset`; who does not resume writes over the old rows."""
    return [*lines[:offset], *new]


def last_step(run: Run) -> int | None:
    """The `_step` of the newest row, or None when nothing was logged."""
    if not run.history:
        return None
    step = json.loads(run.history[-1]).get("_step")
    return int(step) if step is not None else len(run.history) - 1
