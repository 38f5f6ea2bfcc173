"""Checks everything that can be checked before the first agent starts.

Owns the order of the checks at start: an error that the user must fix is reported in one line now,
not by agents that fail later.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread
import structlog
from aiohttp import ClientSession

from coordinator.config import Config
from coordinator.core.model import SweepPath, SweepState
from coordinator.errors import ConfigError
from coordinator.gpu import visible_gpus
from coordinator.supervisor.starter import AgentStarter, StarterSettings
from coordinator.telemetry import Telemetry
from coordinator.wandb_account import Account, Login, find, find_login, proxy_for
from coordinator.wandb_account.questions import NoSuchSweepError, UpstreamUnreachableError

log = structlog.get_logger()

RETRY_SECONDS = 2.0
NOT_FOR_AGENTS = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS",
                            "LISTEN_PID", "LISTEN_FDNAMES"})  # fmt: skip
"""Variables of systemd for us only; sd_notify(3) and sd_listen_fds(3) say to remove them."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Results of the preflight."""

    sweep: SweepPath
    workdir: Path
    login: Login
    session: ClientSession
    account: Account
    executable: str
    starter: AgentStarter
    sweep_state: SweepState
    gpus: tuple[str, ...]
    slots: int


async def preflight(
    config: Config,
    environ: Mapping[str, str],
    log_dir: Path,
    stack: AsyncExitStack,
    telemetry: Telemetry,
) -> Findings:
    """Run all checks; `stack` closes what stays open.

    Raises UserError or PeerError with one line for the user.
    """
    if not config.sweep.path:
        raise ConfigError("--sweep", "missing; give the sweep as ENTITY/PROJECT/SWEEP_ID")
    sweep = SweepPath.parse(config.sweep.path)
    workdir = await _workdir(config)
    login = await anyio.to_thread.run_sync(find_login, environ, workdir)
    telemetry.register_secret(login.api_key)
    session = await stack.enter_async_context(
        ClientSession(proxy=proxy_for(login.base_url, environ))
    )
    account = Account(login, session)
    executable = await anyio.to_thread.run_sync(find, config.sweep.wandb, environ)
    starter = AgentStarter(StarterSettings(config.pool.agent_start, executable,
                                           for_agents(environ), workdir, log_dir))  # fmt: skip
    stack.push_async_callback(starter.close)
    async with anyio.create_task_group() as group:  # importing wandb takes as long as all the rest
        group.start_soon(starter.prepare)
        state = await _sweep_state(account, sweep, config.sweep.connect_seconds)
    if state.is_over:
        log.warning("sweep_not_running", sweep=str(sweep), state=state,
                    hint=f"W&B hands out no runs until `wandb sweep --resume {sweep}`")  # fmt: skip
    gpus = await anyio.to_thread.run_sync(visible_gpus, environ)
    return Findings(
        sweep=sweep,
        workdir=workdir,
        login=login,
        session=session,
        account=account,
        executable=executable,
        starter=starter,
        sweep_state=state,
        gpus=tuple(gpus),
        slots=_slots(config, len(gpus)),
    )


def for_agents(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of our own environment that agents get."""
    return {name: value for name, value in environ.items() if name not in NOT_FOR_AGENTS}


async def _workdir(config: Config) -> Path:
    path = Path(await anyio.Path(config.sweep.workdir).expanduser())
    if not await anyio.Path(path).is_dir():
        raise ConfigError(
            "[sweep] workdir", f"{path} is not a directory; create it or use --workdir"
        )
    return Path(await anyio.Path(path).absolute())


async def _sweep_state(account: Account, sweep: SweepPath, patience_seconds: float) -> SweepState:
    """The sweep's state, waiting for a server that is not reachable yet."""
    deadline = monotonic() + patience_seconds
    unknown = False
    while True:
        try:
            return await account.sweep_state(sweep)
        except NoSuchSweepError:  # once proves nothing: a server that is being upgraded says so too
            if unknown:
                raise
            unknown = True
            await anyio.sleep(RETRY_SECONDS / 2)
        except UpstreamUnreachableError as error:
            left = deadline - monotonic()
            if left <= 0:
                raise
            log.warning("upstream_unreachable", reason=str(error), gives_up_in_seconds=round(left))
            await anyio.sleep(min(RETRY_SECONDS, left))


def _slots(config: Config, gpus: int) -> int:
    if isinstance(config.pool.slots, int):
        return config.pool.slots
    return max(1, gpus // config.pool.gpus_per_slot) if config.pool.gpus_per_slot else 1
