"""Builds the guards of a node from its configuration.

Owns the translation of `[breaker]` and `[pacing]`. Decides nothing itself.
"""

import anyio.to_thread

from coordinator.config import Config
from coordinator.core.breaker import Rules
from coordinator.core.pace import Pace
from coordinator.daemon.settings import Setup
from coordinator.leases import Leases
from coordinator.supervisor.breakers import Breakers, BreakerSettings
from coordinator.supervisor.guards import Guards
from coordinator.supervisor.level import Level
from coordinator.supervisor.pacing import Pacer, PaceSettings
from coordinator.supervisor.premises import Premises
from coordinator.supervisor.upstream import Upstream
from coordinator.wandb_account import find_login
from coordinator.wandb_account.questions import NoSuchSweepError


def build_guards(setup: Setup, leases: Leases, changed: Level) -> Guards:
    """The guards of this node; none of them runs yet."""
    config, findings = setup.config, setup.findings

    async def try_key() -> None:
        """Look for the key where trainings look, then ask W&B about the key that we use."""
        await anyio.to_thread.run_sync(find_login, setup.environ, findings.workdir)
        try:
            await findings.account.sweep_state(findings.sweep)
        except NoSuchSweepError:
            return  # `SweepWatch` reports that; the key was accepted

    folders = (setup.state.root, findings.workdir)
    premises = Premises(folders, config.breaker.min_free_bytes, try_key, changed.bump)
    return Guards(
        upstream=Upstream(premises.doubt_key),
        pacer=Pacer(_pace_settings(config), leases.shared),
        premises=premises,
        breakers=Breakers(_breaker_settings(config), setup.node, leases.shared, changed.bump),
    )


def _breaker_settings(config: Config) -> BreakerSettings:
    breaker = config.breaker

    def rules(failures: int, per_label: int = 0) -> Rules:
        # A probe must have time to be claimed, started and to prove itself.
        probe = config.pool.start_seconds + breaker.sound_seconds + breaker.cooldown_seconds
        return Rules(failures, breaker.cooldown_seconds, breaker.max_cooldown_seconds, probe,
                     per_label)  # fmt: skip

    return BreakerSettings(
        enabled=breaker.enabled,
        slot=rules(breaker.slot_failures),
        node=rules(breaker.failures),
        sweep=rules(breaker.sweep_failures, breaker.failures),
        run_failures=breaker.run_failures,
        early_seconds=breaker.early_seconds,
        sound_seconds=breaker.sound_seconds,
    )


def _pace_settings(config: Config) -> PaceSettings:
    pacing = config.pacing
    return PaceSettings(
        starts=Pace(pacing.agent_starts_per_second, pacing.agent_start_burst),
        claims=Pace(pacing.claims_per_second, pacing.claim_burst),
        sweep_claims=Pace(pacing.sweep_claims_per_second, pacing.sweep_claim_burst),
    )
