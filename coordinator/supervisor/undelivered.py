"""Commands that were fetched and could not be started before the daemon ended.

Owns one file: the next daemon of this node starts them first. The server would keep their runs
reserved for an hour otherwise.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import structlog

from coordinator.core import wire
from coordinator.core.wire import TrainCommand
from coordinator.leases import Claim

log = structlog.get_logger()


def train_command(claim: Claim) -> TrainCommand:
    """The command of a claim that was journalled, as the server had given it."""
    raw = {"type": claim.kind.value, "run_id": claim.run_id, "program": claim.program,
           "args": dict(claim.args)}  # fmt: skip
    return TrainCommand(claim.kind, claim.run_id, claim.program, claim.args, raw)


async def load_undelivered(path: Path) -> list[TrainCommand]:
    """Read and delete the file; [] when there is none or it is damaged."""
    file = anyio.Path(path)
    try:
        commands = msgspec.json.decode(await file.read_bytes(), type=list[dict[str, Any]])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        log.warning("undelivered_unreadable", file=str(path), error=str(error))
        return []
    await file.unlink(missing_ok=True)
    orders = wire.parse_orders(wire.heartbeat_answer("", commands))
    return list(orders.train) if orders else []


async def save_undelivered(path: Path, commands: Sequence[TrainCommand]) -> None:
    """Write what the next daemon is to start first."""
    if not commands:
        return
    log.warning("claims_left", run_ids=[command.run_id for command in commands], file=str(path))
    await anyio.Path(path).write_bytes(msgspec.json.encode([dict(c.raw) for c in commands]))
