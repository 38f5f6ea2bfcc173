"""Puts the parts of the demo together, runs them and always cleans up.

Owns the order of start and end, and what a signal does: the first one ends everything, later ones
change nothing since the end is bounded.
"""

import argparse
import signal
import sys
from contextlib import AsyncExitStack

import aiohttp
import anyio
from anyio.abc import TaskStatus
from facts import gather
from live import LiveStage, hints
from nodes import Node
from observed import Observed
from play import CRASH_SECONDS, RACY_SECONDS, Play, Story, create_sweep
from report import print_report, write_json
from rich.console import Console
from stage import PlainStage, Stage
from verdict import checks
from world import DemoError, World, make_world

from coordinator.errors import CoordinatorError

INTERRUPTED_EXIT_CODE = 130
FOLLOW_SECONDS = 0.15
ASK_SECONDS = 30.0
PREPARING = "starting a W&B server (emulator) and Redis, creating a sweep"


def show(options: argparse.Namespace) -> int:
    """The whole demo; its exit code."""
    return anyio.run(_until_signal, options)


async def _until_signal(options: argparse.Namespace) -> int:
    code = INTERRUPTED_EXIT_CODE
    async with anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        await tasks.start(_cancel_on_signal, scope)
        with scope:
            code = await _show(options)
        tasks.cancel_scope.cancel()
    if scope.cancelled_caught:
        print("interrupted; all processes were stopped", file=sys.stderr)
    return code


async def _cancel_on_signal(
    scope: anyio.CancelScope, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def _show(options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    try:
        async with make_world(keep=options.keep) as world:
            if options.keep:
                console.print(f"all files are kept in {world.root}")
            return await _in_world(world, console, options)
    except* CoordinatorError as group:
        for error in _leaves(group):
            console.print(f"scripts/demo: {error}", style="red", markup=False)
    return 1


def _leaves(group: BaseExceptionGroup[CoordinatorError]) -> list[CoordinatorError]:
    found: list[CoordinatorError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


async def _in_world(world: World, console: Console, options: argparse.Namespace) -> int:
    if not console.is_terminal:
        print(PREPARING, flush=True)
    with console.status(PREPARING):  # shown on a terminal only
        await world.start_emulator(
            "--racy-window", str(RACY_SECONDS), "--crash-seconds", str(CRASH_SECONDS)
        )
        await world.start_redis()
        sweep = await create_sweep(world, options.runs)
    url = world.redis_url if options.leases == "on" else "off"
    nodes = [Node(name, world, sweep, url) for name in ("a", "b")]
    observed = Observed(world.records, world.server_history, {n.name: n.events for n in nodes})
    story = Story(options.runs, options.leases == "on")
    live = None
    if console.is_terminal and not options.plain:
        live = LiveStage(console, observed, nodes, options.runs)
    else:
        print("in another terminal:", *hints(nodes[-1]), sep="\n", flush=True)
    await _perform(Play(world, observed, live or PlainStage(), story), nodes, live)
    observed.refresh()
    facts = gather(story, observed, await _server_runs(world))
    results = checks(facts, story)
    print_report(console, facts, results)
    if options.json:
        write_json(options.json, facts, results)
    return 0 if all(check.passed for check in results) else 1


async def _perform(play: Play, nodes: list[Node], live: LiveStage | None) -> None:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(_follow, play.observed, play.stage)
        if live is not None:
            tasks.start_soon(live.run)
        await play.perform(*nodes)
        tasks.cancel_scope.cancel()


async def _follow(observed: Observed, stage: Stage) -> None:
    while True:
        stage.happened(observed.refresh())
        await anyio.sleep(FOLLOW_SECONDS)


async def _server_runs(world: World) -> dict[str, dict[str, object]]:
    """The runs as the server shows them. Raises DemoError when it does not answer."""
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{world.url}/_emulator/state") as reply,
        ):
            runs: dict[str, dict[str, object]] = (await reply.json())["runs"]
            return runs
    except (aiohttp.ClientError, TimeoutError) as error:
        raise DemoError(f"the W&B server does not answer: {error}") from error
