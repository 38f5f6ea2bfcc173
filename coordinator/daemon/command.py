"""The command line of coordinatord: flags to configuration, errors to one line and an exit code."""

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import click

from coordinator import __version__
from coordinator.config import FLAGS, load
from coordinator.core.rank import gated
from coordinator.errors import CoordinatorError

EPILOG = """\b
Examples:
  coordinatord --sweep my-team/vision/a1b2c3d4 --slots 8
  coordinatord --config /etc/wandb-coordinator/coordinator.toml
  coordinatord --sweep my-team/vision/a1b2c3d4 --redis-url redis://10.0.0.5 --until-done

\b
Every key of the configuration file can also be set by a variable: [redis] ttl_seconds by
COORDINATOR_REDIS_TTL_SECONDS. Flags override variables, variables override the file.

\b
Exit codes: 0 the sweep has no more work (--until-done) or `coordinatorctl stop`;
  1 W&B, Redis or the agents failed, a retry may work; 2 needs manual action:
  configuration, API key, sweep path; 75 preempted, start it again.
"""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML configuration file.")
@click.option("--sweep", metavar="ENTITY/PROJECT/ID", help="The sweep to work on.")
@click.option(
    "--slots", metavar="N|auto", help="Number of concurrent trainings; auto: from the GPUs."
)
@click.option("--redis-url", metavar="URL|embedded|off", help="Redis for the leases.")
@click.option("--state-dir", metavar="DIR", help="Directory for state, logs and sockets.")
@click.option("--node", metavar="NAME", help="Name of this node (default: the host name).")
@click.option("--workdir", metavar="DIR", help="Directory in which agents and trainings run.")
@click.option(
    "--until-done", is_flag=True, default=None, help="Exit when the sweep has no more work."
)
@click.option("--rank-gate", metavar="node|job|off", help="Under srun: which tasks run.")
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Set any other key."
)
@click.version_option(__version__, prog_name="coordinatord")
def coordinatord(config: Path | None, settings: tuple[str, ...], **named: Any) -> None:
    """Run a pool of real `wandb agent` processes for one W&B sweep on this node."""
    from coordinator.daemon.compose import run_daemon  # noqa: PLC0415 - after --help is answered

    keys = {flag.removeprefix("--").replace("-", "_"): key for key, flag in FLAGS.items()}
    flags = {keys[name]: value for name, value in named.items() if value is not None}
    for setting in settings:
        key, found, value = setting.partition("=")
        if not found:
            raise click.UsageError(f"--set {setting}: use SECTION.KEY=VALUE")
        flags[key] = value
    file = config or (Path(name) if (name := os.environ.get("COORDINATOR_CONFIG")) else None)
    loaded = load(file, os.environ, flags)
    if (reason := gated(loaded.rank_gate, os.environ)) is not None:
        click.echo(f"coordinatord: {reason}", err=True)
        sys.exit(0)
    sys.exit(anyio.run(run_daemon, loaded, dict(os.environ)))


def main() -> None:
    """Run coordinatord; never shows a traceback for what a user can fix."""
    try:
        coordinatord(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.Abort:
        sys.exit(130)
    except CoordinatorError as error:
        click.echo(f"coordinatord: {error}", err=True)
        sys.exit(error.exit_code)
