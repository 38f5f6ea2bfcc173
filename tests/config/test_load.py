"""Where values come from, which source wins, and what is said about those that will not do."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.config import Config, load
from coordinator.config.load import NO_KEYS, TRAINING_PREFIX, known_keys, variable
from coordinator.daemon.command import coordinatord
from coordinator.errors import ConfigError
from coordinator.state_dir import default_socket

OTHER_VALUES: dict[str, Any] = {
    "node": "node-b",
    "state_dir": "/var/tmp/c",
    "until_done": True,
    "rank_gate": "node",
    "sweep.path": "my-team/vision/a1b2c3d4",
    "sweep.workdir": "/home/user",
    "sweep.wandb": "/home/user/bin/wandb",
    "sweep.env": {"A": "1", "B": "two words"},
    "sweep.resume": "must",
    "sweep.resume_sweep": True,
    "sweep.poll_seconds": 7.5,
    "sweep.connect_seconds": 0.0,
    "pool.slots": 8,
    "pool.gpus_per_slot": 2,
    "pool.agent_start": "exec",
    "pool.warm_agents": 0,
    "pool.linger_seconds": 0.0,
    "pool.start_seconds": 61.0,
    "pool.idle_timeout_seconds": 900.0,
    "redis.url": "redis://10.0.0.5",
    "redis.ttl_seconds": 90.0,
    "redis.renew_seconds": 15.0,
    "redis.grace_seconds": 31.0,
    "redis.handoff_seconds": 0.0,
    "redis.race_window_seconds": 29.5,
    "redis.on_lease_loss": "strict",
    "redis.timeout_seconds": 1.5,
    "redis.stop_budget_seconds": 11.0,
    "preemption.preset": "torchrun",
    "preemption.signals": {"SIGTERM": "SIGUSR1"},
    "preemption.target": "workers",
    "preemption.grace_seconds": 120.0,
    "preemption.storm_seconds": 0.0,
    "preemption.notices": ["ec2", "azure"],
    "preemption.on_risk": "preempt",
    "preemption.acknowledge": True,
    "preemption.endpoints": {"ec2": "http://127.0.0.1:1338"},
    "preemption.graceful_cancel": True,
    "rescue.enabled": False,
    "rescue.on": ["crashed", "oom"],
    "rescue.max_attempts": 7,
    "rescue.backoff_seconds": 0.5,
    "breaker.enabled": False,
    "breaker.failures": 7,
    "breaker.slot_failures": 4,
    "breaker.sweep_failures": 50,
    "breaker.run_failures": 9,
    "breaker.early_seconds": 0.0,
    "breaker.sound_seconds": 90.0,
    "breaker.cooldown_seconds": 15.0,
    "breaker.max_cooldown_seconds": 1200.0,
    "breaker.min_free_bytes": 0,
    "pacing.agent_starts_per_second": 0.5,
    "pacing.agent_start_burst": 4,
    "pacing.claims_per_second": 1.5,
    "pacing.claim_burst": 9,
    "pacing.sweep_claims_per_second": 100.0,
    "pacing.sweep_claim_burst": 1000,
    "control.socket": "/run/c.sock",
    "control.group": "ml",
    "events.file": "off",
    "events.format": "json",
    "events.max_bytes": 20_000,
    "events.keep": 1,
}
"""For every key a value that is not its default."""
KEYS = sorted(OTHER_VALUES)


def value_of(config: Config, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(config, section) if section else config, name)


def as_text(value: Any) -> str:
    """As a person writes it in a variable or behind `--set`."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "coordinator.toml"
    file.write_text(text)
    return file


def as_toml(key: str, value: Any) -> str:
    section, _, name = key.rpartition(".")
    if isinstance(value, dict):
        body = "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items()) + "}"
    else:
        body = json.dumps(value)
    return (f"[{section}]\n" if section else "") + f"{name} = {body}\n"


def refused(
    file: Path | None = None,
    environ: dict[str, str] | None = None,
    flags: dict[str, Any] | None = None,
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, flags)
    assert "\n" not in str(caught.value), "an error is one line"
    return caught.value


# --- every key, from every source -----------------------------------------------------------------
def test_the_table_of_this_test_knows_every_key_and_its_default_is_another_value() -> None:
    assert set(OTHER_VALUES) == set(known_keys())
    assert all(value_of(Config(), key) != value for key, value in OTHER_VALUES.items())


@pytest.mark.parametrize("key", KEYS)
def test_a_key_can_be_set_in_the_file(key: str, tmp_path: Path) -> None:
    file = toml(tmp_path, as_toml(key, OTHER_VALUES[key]))
    assert value_of(load(file, {}), key) == OTHER_VALUES[key]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_can_be_set_by_a_variable(key: str) -> None:
    environ = {variable(key): as_text(OTHER_VALUES[key])}
    assert value_of(load(None, environ), key) == OTHER_VALUES[key]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_can_be_set_by_a_flag_as_text(key: str) -> None:
    flags = {key: as_text(OTHER_VALUES[key])}
    assert value_of(load(None, {}, flags), key) == OTHER_VALUES[key]


@pytest.mark.parametrize("key", KEYS)
def test_setting_one_key_leaves_all_others_at_their_defaults(key: str) -> None:
    config = load(None, {}, {key: OTHER_VALUES[key]})
    others = {other for other in KEYS if value_of(config, other) != value_of(Config(), other)}
    assert others == {key}


def test_without_any_source_everything_has_its_default() -> None:
    assert load(None, {}) == Config()


def test_the_variables_of_two_keys_are_never_the_same_nor_those_that_trainings_see() -> None:
    variables = [variable(key) for key in known_keys()]
    assert len(set(variables)) == len(variables)
    assert not [name for name in variables if name.startswith(TRAINING_PREFIX) or name in NO_KEYS]


# --- precedence -----------------------------------------------------------------------------------
def test_a_flag_overrides_a_variable_and_a_variable_overrides_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "[pool]\nslots = 1\nwarm_agents = 1\nlinger_seconds = 1\n")
    environ = {"COORDINATOR_POOL_SLOTS": "2", "COORDINATOR_POOL_WARM_AGENTS": "2"}
    pool = load(file, environ, {"pool.slots": "3"}).pool
    assert (pool.slots, pool.warm_agents, pool.linger_seconds) == (3, 2, 1.0)


def test_a_table_from_a_stronger_source_replaces_the_weaker_one_whole(tmp_path: Path) -> None:
    file = toml(tmp_path, '[sweep.env]\nA = "file"\nB = "file"\n')
    environ = {"COORDINATOR_SWEEP_ENV": '{"A": "variable"}'}
    assert load(file, environ).sweep.env == {"A": "variable"}


def test_the_short_name_of_the_socket_is_another_name_of_its_key() -> None:
    assert load(None, {"COORDINATOR_SOCKET": "/a.sock"}).control.socket == "/a.sock"


@pytest.mark.parametrize("turn", [1, -1])
def test_daemon_and_coordinatorctl_choose_the_same_of_two_variables_for_the_socket(
    turn: int,
) -> None:
    both = [("COORDINATOR_SOCKET", "/a.sock"), ("COORDINATOR_CONTROL_SOCKET", "/b.sock")]
    environ = dict(both[::turn])
    assert load(None, environ).control.socket == default_socket(environ)


def test_variables_that_trainings_see_are_passed_over() -> None:
    environ = {"COORDINATOR_RUN_CLAIM": "x", "COORDINATOR_RUN_SLOT": "1", "COORDINATOR_CONFIG": "f"}
    assert load(None, environ) == Config()


def test_variables_of_other_programs_are_passed_over() -> None:
    assert load(None, {"PATH": "/bin", "WANDB_API_KEY": "k", "COORDINATORS": "2"}) == Config()


# --- values ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("true", True), ("YES", True), ("0", False), ("False", False), ("no", False)],
)
def test_a_switch_may_be_written_in_every_common_way(text: str, value: bool) -> None:
    assert load(None, {"COORDINATOR_UNTIL_DONE": text}).until_done is value


def test_slots_are_a_number_or_auto() -> None:
    assert load(None, {"COORDINATOR_POOL_SLOTS": "auto"}).pool.slots == "auto"
    assert load(None, {"COORDINATOR_POOL_SLOTS": "12"}).pool.slots == 12
    assert load(None, {"COORDINATOR_POOL_SLOTS": "0"}).pool.slots == 0


BAD_VALUES = [
    ("pool.slots", "many"),
    ("pool.slots", "-1"),
    ("pool.slots", "1.5"),
    ("pool.agent_start", "spawn"),
    ("pool.warm_agents", "65"),
    ("pool.warm_agents", "many"),
    ("pool.gpus_per_slot", "-1"),
    ("pool.start_seconds", "0"),
    ("sweep.poll_seconds", "-5"),
    ("sweep.poll_seconds", "5s"),
    ("sweep.resume", "perhaps"),
    ("sweep.path", "vision/a1b2c3d4"),
    ("sweep.env", "A=1"),
    ("sweep.env", '["A"]'),
    ("redis.ttl_seconds", "a minute"),
    ("redis.on_lease_loss", "shrug"),
    ("preemption.preset", "horovod"),
    ("preemption.target", "everyone"),
    ("preemption.signals", '{"SIGTERM": "NOPE"}'),
    ("preemption.signals", '{"SIGCHLD": "SIGTERM"}'),
    ("preemption.signals", "TERM"),
    ("preemption.notices", '["signals"]'),
    ("preemption.on_risk", "panic"),
    ("preemption.endpoints", '{"oracle": "http://h"}'),
    ("preemption.endpoints", '{"ec2": "169.254.169.254"}'),
    ("events.format", "xml"),
    ("events.max_bytes", "9999"),
    ("events.keep", "0"),
    ("until_done", "perhaps"),
    ("rank_gate", "rack"),
]


@pytest.mark.parametrize(("key", "text"), BAD_VALUES)
def test_a_bad_value_in_a_variable_is_refused_by_the_name_of_the_variable(
    key: str, text: str
) -> None:
    assert refused(environ={variable(key): text}).where == variable(key)


@pytest.mark.parametrize(("key", "text"), BAD_VALUES)
def test_a_bad_value_on_the_command_line_is_refused_by_a_flag_that_exists(
    key: str, text: str
) -> None:
    where = refused(flags={key: text}).where
    options = {option for parameter in coordinatord.params for option in parameter.opts}
    assert where == f"--set {key}" or where in options


@pytest.mark.parametrize(("key", "text"), BAD_VALUES)
def test_a_bad_value_in_the_file_is_refused_by_file_section_and_key(
    key: str, text: str, tmp_path: Path
) -> None:
    file = toml(tmp_path, as_toml(key, text))
    section, _, name = key.rpartition(".")
    shown = f"[{section}] {name}" if section else name
    assert refused(file).where == f"{file}: {shown}"


@pytest.mark.parametrize(
    "line",
    ["[pool]\nslots = true", "[pool]\nslots = 1.5", "[redis]\nttl_seconds = true", "node = 7",
     "until_done = 1", "[sweep]\nenv = 'A'", "[sweep.env]\nA = 1"],
)  # fmt: skip
def test_a_value_of_another_type_in_the_file_is_refused(line: str, tmp_path: Path) -> None:
    assert refused(toml(tmp_path, line)).where.startswith(f"{tmp_path / 'coordinator.toml'}: ")


# --- what nobody knows ----------------------------------------------------------------------------
def test_an_unknown_key_is_refused_by_the_name_of_the_file_with_the_nearest_one(
    tmp_path: Path,
) -> None:
    file = toml(tmp_path, "[redis]\nttl_second = 60\n")
    error = refused(file)
    assert error.where == str(file)
    assert error.problem == "unknown key [redis] ttl_second; did you mean [redis] ttl_seconds?"


@pytest.mark.parametrize(
    ("text", "key"),
    [("nodee = 'a'", "nodee"), ("[reddis]\nurl = 'off'", "reddis"), ("[pool]\nx.y = 1", "[pool] x"),
     ("redis = 'off'", "redis"), ("[[pool]]\nslots = 1", "pool")],
)  # fmt: skip
def test_an_unknown_key_is_refused_in_every_source(text: str, key: str, tmp_path: Path) -> None:
    assert refused(toml(tmp_path, text)).problem.startswith(f"unknown key {key}")


def test_an_unknown_variable_is_refused_with_the_nearest_one() -> None:
    error = refused(environ={"COORDINATOR_POOL_SLOT": "8"})
    assert error.where == "COORDINATOR_POOL_SLOT"
    assert error.problem == "unknown variable; did you mean COORDINATOR_POOL_SLOTS?"


def test_an_unknown_key_on_the_command_line_is_refused_with_the_nearest_one() -> None:
    error = refused(flags={"pool.slotz": "8"})
    assert error.where == "--set pool.slotz"
    assert error.problem == "unknown key [pool] slotz; did you mean [pool] slots?"


def test_a_key_that_resembles_no_other_is_refused_without_a_suggestion(tmp_path: Path) -> None:
    assert refused(toml(tmp_path, "qqqqqq = 1")).problem == "unknown key qqqqqq"


# --- the file itself ------------------------------------------------------------------------------
def test_a_file_that_is_not_toml_is_refused_by_name_and_line(tmp_path: Path) -> None:
    file = toml(tmp_path, "[pool]\nslots = \n")
    error = refused(file)
    assert error.where == str(file)
    assert "line 2" in error.problem


def test_a_file_in_another_encoding_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b'node = "caf\xe9"\n')
    assert refused(file).where == str(file)


def test_a_file_that_is_missing_or_none_is_refused_by_name(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent.toml").where == str(tmp_path / "absent.toml")
    assert refused(tmp_path).where == str(tmp_path)


# --- secrets --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "environ",
    [
        {"COORDINATOR_SWEEP_ENV": '{"TOKEN": "s3cret", "N": 5}'},
        {"COORDINATOR_SWEEP_ENV": '{"TOKEN": "s3cret",'},
        {"COORDINATOR_SWEEP_ENV": '["s3cret"]'},
        {"COORDINATOR_SWEEP_ENV": "s3cret"},
        {"COORDINATOR_REDIS_URLL": "redis://:s3cret@host"},
    ],
)
def test_no_error_shows_what_may_be_a_secret(environ: dict[str, str]) -> None:
    error = refused(environ=environ)
    assert "s3cret" not in str(error)
    assert error.__cause__ is None or "s3cret" not in str(error.__cause__)


def test_no_error_about_a_file_shows_the_variables_of_trainings(tmp_path: Path) -> None:
    file = toml(tmp_path, '[sweep.env]\nTOKEN = "s3cret"\nN = 5\n')
    assert "s3cret" not in str(refused(file))


# --- what comes out -------------------------------------------------------------------------------
def test_the_configuration_cannot_be_changed_once_it_is_built() -> None:
    with pytest.raises(AttributeError):
        load(None, {}).node = "x"  # type: ignore[misc]


def test_every_key_has_a_value_that_can_be_printed_as_json() -> None:
    assert json.loads(msgspec.json.encode(load(None, {})))["redis"]["ttl_seconds"] == 60.0
