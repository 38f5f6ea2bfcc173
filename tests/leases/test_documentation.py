"""docs/leases.md says what the code does."""

import re
from pathlib import Path

from coordinator.core.model import SweepPath
from coordinator.leases import LeaseSettings
from coordinator.leases.fitness import CLUSTER_ACL, MINIMAL_ACL
from coordinator.leases.keys import Keys
from coordinator.leases.scripts import NAMES, lua_source

PAGE = Path(__file__).parents[2] / "docs" / "leases.md"


def test_the_documented_rights_are_the_tested_ones() -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = text.split("ACL SETUSER coordinator on >PASSWORD")[1].split("```")[0].split()
    assert tuple(shown) == MINIMAL_ACL
    assert f"In a Cluster also `{' '.join(CLUSTER_ACL)}`" in text


def test_every_command_that_a_script_calls_is_among_the_rights() -> None:
    called = {
        command.lower()
        for name in (*NAMES, "prelude", "clock")
        for command in re.findall(r"redis\.call\('(\w+)'", lua_source(name))
    }
    assert len(called) > 10
    assert {f"+{command}" for command in called} <= set(MINIMAL_ACL)


def test_the_documented_defaults_are_the_real_ones() -> None:
    rows = [
        line.strip("| ").split(" | ")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.endswith("_seconds` |")
    ]
    assert len(rows) == 7
    for _, value, key in rows:
        documented = float(value.removesuffix(" s"))
        assert getattr(LeaseSettings(), key.strip("` |")) == documented


def test_the_documented_length_of_a_harmless_partition_follows_from_the_settings() -> None:
    cfg = LeaseSettings()
    until_claimable = cfg.ttl_seconds + cfg.grace_seconds
    last_renewal_and_next_try = 1.1 * cfg.renew_seconds + 1.1 * cfg.renew_seconds / 4
    harmless = until_claimable - last_renewal_and_next_try - cfg.timeout_seconds
    assert f"one time-out, {int(harmless)} s by" in PAGE.read_text(encoding="utf-8")


def test_every_key_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    keys = Keys(SweepPath("ENTITY", "PROJECT", "SWEEP"))
    assert f"`{keys.prefix}`" in text
    named = (keys.lease("RUN"), keys.run("RUN"), keys.void("TOKEN"), keys.node("NAME"))
    for key in (
        *named,
        keys.wake("NAME"),
        keys.idle,
        keys.pace,
        keys.turn,
        keys.breaker,
        keys.rescue,
    ):
        assert f"`{key.removeprefix(keys.prefix)}`" in text
    for key in (keys.fence, keys.index, keys.stream, keys.epoch, keys.nodes, keys.sweep_state):
        assert f"`{key.removeprefix(keys.prefix)}`" in text
