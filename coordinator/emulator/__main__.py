"""The command line of the emulator: reads the options, serves until a signal, ends with exit code
0.

Owns the composition of the parts and the life of the process. Nothing else may import it.
"""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import click
import msgspec
from aiohttp import web

from coordinator.emulator import admin
from coordinator.emulator.faults import Behaviour, Fault, Faults, parse_rule
from coordinator.emulator.history import Event, History
from coordinator.emulator.runs import Limits, RunBook
from coordinator.emulator.server import LARGEST_BODY, Server
from coordinator.emulator.state import Backend

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

_EXAMPLES: Final = """An in-memory W&B backend for tests and demos on this machine.

\b
Examples:
  python -m coordinator.emulator --port 8765
  python -m coordinator.emulator --port 0 --ready-file url --time-scale 0.01
  python -m coordinator.emulator --racy-window 8 --seed 7
  python -m coordinator.emulator --fault op=Heartbeat,kind=http,status=500,count=3
  python -m coordinator.emulator --fault op=Heartbeat,kind=delay,seconds=0.1,max_seconds=2

\b
Then use the address that it prints:
  export WANDB_BASE_URL=http://127.0.0.1:8765
  export WANDB_API_KEY=0123456789012345678901234567890123456789
  wandb sweep sweep.yaml
  wandb agent emulator/PROJECT/SWEEP
  curl $WANDB_BASE_URL/_emulator/state
"""
_TICK_SECONDS: Final = 0.1
_KEEP_ALIVE_SECONDS: Final = 3600.0
"""Longer than any client's own limit: an open connection stands for a living client."""


class _Rule(click.ParamType[Fault]):
    name = "rule"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Fault:
        try:
            return parse_rule(value)
        except (ValueError, msgspec.ValidationError) as error:
            self.fail(str(error), param, ctx)


@click.command(help=_EXAMPLES)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--ready-file", type=click.Path(path_type=Path), help="Write the base URL here when ready."
)
@click.option(
    "--history-file", type=click.Path(path_type=Path), help="Write each event here as a JSON line."
)
@click.option("--entity", default="emulator", show_default=True, help="Default entity.")
@click.option("--api-key", "api_keys", multiple=True, help="Accept only this key (repeatable).")
@click.option("--time-scale", default=1.0, show_default=True, help="Scale of the two times below.")
@click.option(
    "--crash-seconds", type=float, help="Silence after which a run crashes. [default: 300 scaled]"
)
@click.option("--reserve-seconds", type=float, help="Lifetime of a claim. [default: 3600 scaled]")
@click.option("--pending", is_flag=True, help="New sweeps are PENDING until an agent asks.")
@click.option(
    "--early-finish", is_flag=True, help="Finish a sweep when its last run is handed out."
)
@click.option(
    "--racy-window", default=0.0, help="Seconds in which every agent gets a re-queued run."
)
@click.option("--racy-new", is_flag=True, help="Also hand out new runs twice in that window.")
@click.option(
    "--wandb-arg/--no-wandb-arg", default=True, help="Add the hidden _wandb argument to resumes."
)
@click.option("--fault", "rules", type=_Rule(), multiple=True, help="Fault rule (repeatable).")
@click.option("--seed", default=0, show_default=True, help="Seed of all randomness.")
def main(**options: Any) -> None:
    """Read the options and serve."""
    with ExitStack() as stack:
        server = _compose(options, stack)
        anyio.run(_serve, server, options)


def _compose(options: dict[str, Any], stack: ExitStack) -> Server:
    rng = random.Random(options["seed"])  # noqa: S311
    scale = options["time_scale"]
    crash, reserve = options["crash_seconds"], options["reserve_seconds"]
    limits = Limits(
        crash_seconds=300.0 * scale if crash is None else crash,
        reserve_seconds=3600.0 * scale if reserve is None else reserve,
    )
    behaviour = Behaviour(
        racy_window=options["racy_window"],
        racy_new=options["racy_new"],
        wandb_arg=options["wandb_arg"],
        early_finish=options["early_finish"],
    )
    history = History(_sink(options, stack))
    backend = Backend(RunBook(limits, history), behaviour, history, rng, options["entity"])
    backend.starts_pending = options["pending"]
    faults = Faults(behaviour, options["rules"], random.Random(rng.random()))  # noqa: S311
    return Server(backend, faults, frozenset(options["api_keys"]))


def _sink(options: dict[str, Any], stack: ExitStack) -> Any:
    path: Path | None = options["history_file"]
    if path is None:
        return None
    file = stack.enter_context(path.open("w", encoding="utf-8", buffering=1))

    def write(event: Event) -> None:
        file.write(json.dumps(event) + "\n")

    return write


async def _serve(server: Server, options: dict[str, Any]) -> None:
    app = web.Application(client_max_size=LARGEST_BODY)
    admin.add_routes(app, server)
    server.add_routes(app)
    async with anyio.create_task_group() as tasks:
        await tasks.start(_end_on_signal, tasks.cancel_scope)
        runner = web.AppRunner(app, keepalive_timeout=_KEEP_ALIVE_SECONDS, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, options["host"], options["port"], shutdown_timeout=0.0)
            await site.start()
            _announce(f"http://{options['host']}:{runner.addresses[0][1]}", options["ready_file"])
            while True:
                await server.tick()
                await anyio.sleep(_TICK_SECONDS)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
                await runner.cleanup()


async def _end_on_signal(
    scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()
            return


def _announce(url: str, ready_file: Path | None) -> None:
    if ready_file is not None:
        partial = ready_file.with_name(f".{ready_file.name}.{os.getpid()}")
        partial.write_text(url, encoding="utf-8")
        partial.replace(ready_file)
    click.echo(f"emulator ready: {url}")


if __name__ == "__main__":
    main()
