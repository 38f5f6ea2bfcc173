"""The settings of each part, from the configuration, the preflight and the environment.

Owns the translation only. Reads no file, starts nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coordinator.config import Config
from coordinator.core.lease import LeaseSettings
from coordinator.core.presets import WORKER_VARIABLES, Asking, Target, asking
from coordinator.core.rescue import Policy
from coordinator.core.signals import signal_number
from coordinator.daemon.preflight import Findings, for_agents
from coordinator.daemon.state import StateDir
from coordinator.gpu import assign
from coordinator.leases import redacted_url
from coordinator.supervisor.agents import AgentSettings
from coordinator.supervisor.pool import PoolSettings
from coordinator.supervisor.slot import SlotSettings, training_environment
from coordinator.supervisor.stays import StayFiles
from coordinator.supervisor.views import Names
from coordinator.wandb_account.sweep_command import SweepCommand

SHIM_VARIABLE = "COORDINATOR_RUN_SHIM"


def asking_of(config: Config) -> Asking:
    """How trainings are asked to save."""
    preemption = config.preemption
    return asking(preemption.preset, preemption.signals, preemption.target)


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that is known before the parts are built."""

    config: Config
    environ: Mapping[str, str]
    """The daemon's own environment, with `[sweep] env` added."""
    state: StateDir
    node: str
    findings: Findings
    redis_url: str
    """Address of the server in use: the embedded one has its own address; "off": none."""

    def lease_settings(self) -> LeaseSettings:
        """Raises ConfigError for times that do not work together."""
        redis = self.config.redis
        return LeaseSettings(
            ttl_seconds=redis.ttl_seconds,
            renew_seconds=redis.renew_seconds,
            grace_seconds=redis.grace_seconds,
            handoff_seconds=redis.handoff_seconds,
            race_window_seconds=redis.race_window_seconds,
            on_lease_loss=redis.on_lease_loss,
            timeout_seconds=redis.timeout_seconds,
            stop_budget_seconds=redis.stop_budget_seconds,
        )

    def rescue_policy(self) -> Policy:
        """Which runs are trained again."""
        rescue = self.config.rescue
        return Policy(rescue.enabled, frozenset(rescue.on), rescue.max_attempts,
                      rescue.backoff_seconds)  # fmt: skip

    def rescue_patience_seconds(self) -> float:
        """After this time a lease of a dead node is in the rescue queue."""
        redis = self.config.redis
        return redis.ttl_seconds + redis.grace_seconds + 5

    def agent_settings(self, address: Callable[[str], str]) -> AgentSettings:
        """How agents are started; `address` is the gateway's for a token."""
        findings = self.findings
        env = self._wandb_environment() | {SHIM_VARIABLE: str(self.state.shim_socket)}
        return AgentSettings(findings.sweep, env, self.state.outputs, address,
                             self.config.preemption.graceful_cancel)  # fmt: skip

    def sweep_command(self) -> SweepCommand:
        """How the state of the sweep is changed; unlike agents, directly on the server."""
        findings = self.findings
        env = self._wandb_environment() | {"WANDB_BASE_URL": findings.login.base_url}
        return SweepCommand(findings.executable, findings.sweep, env, findings.workdir)

    def _wandb_environment(self) -> dict[str, str]:
        return for_agents(self.environ) | {"WANDB_API_KEY": self.findings.login.api_key}

    def pool_settings(self) -> PoolSettings:
        """The desired state of the node."""
        preemption = self.config.preemption
        return PoolSettings(
            slots=self.findings.slots,
            warm_agents=self.config.pool.warm_agents,
            until_done=self.config.until_done,
            grace_seconds=preemption.grace_seconds,
            storm_seconds=preemption.storm_seconds,
            idle_timeout_seconds=self.config.pool.idle_timeout_seconds,
            preempt_signal=self.preempt_signal(),
            graceful_cancel=preemption.graceful_cancel,
        )

    def preempt_signal(self) -> int:
        """The signal for trainings when none was named."""
        return signal_number(asking_of(self.config).signals["SIGTERM"])

    def slot_settings(self, files: StayFiles) -> SlotSettings:
        """What all slots share."""
        pool, findings = self.config.pool, self.findings
        # What the agent got only to reach us is removed before the training starts.
        back: dict[str, str | None] = {"WANDB_BASE_URL": self.environ.get("WANDB_BASE_URL")}
        if not findings.login.key_from_environment:
            back["WANDB_API_KEY"] = None

        def gpus(slot: int) -> list[str]:
            return assign(findings.gpus, slot, pool.gpus_per_slot)

        workers = asking_of(self.config).target is Target.WORKERS
        return SlotSettings(
            start_seconds=pool.start_seconds,
            linger_seconds=pool.linger_seconds,
            grace_seconds=self.config.preemption.grace_seconds,
            poll_seconds=self.config.sweep.poll_seconds,
            stays=files,
            environment=training_environment(back, self.config.sweep.resume, gpus),
            worker_variables=WORKER_VARIABLES if workers else frozenset(),
        )

    def names(self) -> Names:
        """Constant values shown to users."""
        url, findings = self.redis_url, self.findings
        return Names(
            node=self.node,
            sweep=str(findings.sweep),
            redis_url=redacted_url(url) if url != "off" else url,
            embedded=self.config.redis.url == "embedded",
            upstream=findings.login.base_url,
            gpus=findings.gpus,
            gpus_per_slot=self.config.pool.gpus_per_slot,
        )
