"""Whatever is wrong: one clear line, the right exit code, no traceback, no storm of agents."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.emulator import Emulator, start_emulator, wait_until
from tests.support.node import Node, sweep_config

MakeNode = Callable[..., Node]


def last_line(node: Node) -> str:
    """What the user reads last; a traceback is never among it."""
    text = node.log.read_text()
    assert "Traceback" not in text, text
    return text.splitlines()[-1]


@pytest.fixture
def sweep(emulator: Emulator) -> str:
    """A sweep that runs."""
    return emulator.create_sweep(sweep_config(2))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--sweep", "nonsense"), "--sweep: 'nonsense' is not of the form ENTITY/PROJECT/SWEEP_ID"),
        (("--sweep", "emulator/tests/nosuch"), "has no such sweep"),
        (("--redis-url", "ftp://here"), "[redis] url: 'ftp://here'"),
        (("--slots", "many"), "--slots: invalid value 'many'; expected a number or 'auto'"),
        (("--slots", "-1"), "--slots: invalid value -1; expected 0 or more"),
        (("--set", "pool.slotz=1"), "did you mean [pool] slots?"),
        (("--set", 'preemption.signals={"SIGTERM": "SIGFOO"}'), "unknown signal 'SIGFOO'"),
        (("--set", "redis.ttl_seconds=5"), "[redis] ttl_seconds = 5 is too small: at least 34 s"),
        (("--workdir", "/nonexistent"), "/nonexistent is not a directory"),
        (("--set", "sweep.wandb=/nonexistent"), "[sweep] wandb: /nonexistent"),
        (("--config", "missing.toml"), "missing.toml: cannot be read"),
    ],
)
def test_an_error_that_the_user_must_fix_is_reported_in_one_line(
    make_node: MakeNode, sweep: str, flags: tuple[str, ...], words: str
) -> None:
    node = make_node(sweep, *flags).start()

    assert node.wait() == 2

    assert words in last_line(node)
    assert node.events("agent_started") == []
    assert not node.processes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[pool", "is not valid TOML"),
        ("[pool]\nslotz = 3\n", "unknown key [pool] slotz; did you mean [pool] slots?"),
        ("[redis]\nttl_seconds = 'soon'\n", "[redis] ttl_seconds: invalid value 'soon'; expected"),
    ],
)
def test_a_bad_file_is_named(make_node: MakeNode, sweep: str, text: str, words: str) -> None:
    node = make_node(sweep)
    node.directory.mkdir(parents=True, exist_ok=True)
    (node.directory / "bad.toml").write_text(text)

    assert node.start("--config", "bad.toml").wait() == 2

    assert words in last_line(node)
    assert "bad.toml" in last_line(node)


def test_no_api_key(make_node: MakeNode, sweep: str) -> None:
    node = make_node(sweep, WANDB_API_KEY="").start()
    assert node.wait() == 2
    assert "set WANDB_API_KEY or run `wandb login" in last_line(node)


def test_a_refused_key(make_node: MakeNode, sweep: str, tmp_path: Path) -> None:
    strict = start_emulator(tmp_path / "strict", "--api-key", "f" * 40)
    try:
        node = make_node(sweep, WANDB_BASE_URL=strict.url).start()
        assert node.wait() == 2
        assert "refused the W&B API key" in last_line(node)
        assert "0123456789" not in node.log.read_text(), "the key itself is never shown"
    finally:
        strict.stop()


def test_an_unreachable_server_is_waited_for_then_named(make_node: MakeNode, sweep: str) -> None:
    node = make_node(sweep, "--set", "sweep.connect_seconds=1", WANDB_BASE_URL="http://127.0.0.1:9")
    assert node.start().wait() == 1
    assert "http://127.0.0.1:9 cannot be reached: Connection refused" in last_line(node)
    assert node.events("upstream_unreachable")


def test_a_sweep_that_is_over_ends_a_batch_job_and_is_reported(
    emulator: Emulator, make_node: MakeNode, sweep: str
) -> None:
    emulator.set_sweep_state(sweep, "CANCELED")
    node = make_node(sweep, "--until-done").start()
    assert node.wait() == 0
    assert node.events("sweep_not_running")[0]["state"] == "CANCELED"
    assert node.events("agent_started") == []


def test_agents_that_are_turned_away_are_started_at_most_twice(
    emulator: Emulator, make_node: MakeNode, sweep: str
) -> None:
    emulator.faults({"kind": "http", "op": "CreateAgent", "status": 400, "count": 1000})
    node = make_node(sweep, "--slots", "4").start()
    assert node.wait() == 1
    assert "`wandb agent` does not start" in last_line(node)
    assert len(node.events("agent_started")) <= 2
    assert not node.processes()


def test_redis_that_is_down_is_waited_for_and_sigterm_ends_the_wait(
    make_node: MakeNode, sweep: str
) -> None:
    node = make_node(sweep, "--redis-url", "redis://127.0.0.1:1").start()
    wait_until("it is said", lambda: node.events("redis_unreachable"))
    assert "redis://127.0.0.1:1" in node.events("redis_unreachable")[0]["url"]
    status = node.ctl("status", check=5)
    assert status["redis"]["state"] == "degraded"
    assert status["degraded"]
    assert node.events("run_claimed") == []
    node.send(15)
    assert node.wait(20) == 75


def test_a_second_daemon_on_the_same_directory_is_refused(
    make_node: MakeNode, sweep: str, tmp_path: Path
) -> None:
    first = make_node(sweep, "--slots", "0").start()
    wait_until("the first is up", first.status)
    second = make_node(sweep, name="second")
    second.start("--state-dir", str(first.state_dir))
    assert second.wait() == 2
    assert "in use by another coordinatord (pid" in last_line(second)
    assert first.status()["state"] == "running"
    first.ctl("stop")
    assert first.wait() == 0


def test_coordinatorctl_without_a_daemon_and_with_bad_words(
    make_node: MakeNode, sweep: str
) -> None:
    node = make_node(sweep, "--slots", "0")
    node.directory.mkdir(parents=True)
    absent = node.ctl_raw("status")
    assert absent.returncode == 3
    assert "no daemon is running" in absent.stderr
    node.start()
    wait_until("it is up", node.status)
    for words in (("signal", "SIGFOO", "all"), ("scale", "lots"), ("preempt", "nosuch")):
        done = node.ctl_raw("--json", *words)
        assert done.returncode == 2, (words, done)
        assert len(done.stderr.strip().splitlines()) <= 3
        assert "Traceback" not in done.stderr
        assert json.loads(done.stdout)["exit_code"] == 2
    assert node.ctl_raw("signal", "TERM", "all").returncode == 6
    node.ctl("stop")
    assert node.wait() == 0


@pytest.mark.parametrize(("target", "warned"), [("preset", [40.0]), ("workers", [])])
def test_a_grace_longer_than_the_launcher_allows_is_reported_at_start(
    make_node: MakeNode, target: str, warned: list[float]
) -> None:
    node = make_node(
        "emulator/tests/nosuch", "--set", "preemption.preset=torchrun",
        "--set", "preemption.grace_seconds=40", "--set", f"preemption.target={target}",
    ).start()  # fmt: skip
    assert node.wait() == 2, node.tail()
    said = node.events("grace_beyond_launcher")
    assert [event["grace_seconds"] for event in said] == warned
    assert {event["save_seconds"] for event in said} <= {30.0}
