"""Cases in which Redis, its own process or a pid plays a whole daemon false.

Owns the playing of each case, which blocks, and what was measured. It must never judge: the tests
do (`test_lease_faults.py`).
"""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

from anyio.from_thread import BlockingPortal

from coordinator.supervisor.stays import start_time
from tests.support.emulator import Emulator, wait_until
from tests.support.node import Node, sweep_config
from tests.support.redis import FaultProxy

TTL, GRACE, STOP_BUDGET = 2.0, 2.0, 2.0
SCALED = {
    "redis.ttl_seconds": TTL,
    "redis.renew_seconds": 0.3,
    "redis.grace_seconds": GRACE,
    "redis.handoff_seconds": 2,
    "redis.race_window_seconds": 0.5,
    "redis.timeout_seconds": 0.5,
    "redis.stop_budget_seconds": STOP_BUDGET,
    "preemption.grace_seconds": STOP_BUDGET,
    "sweep.poll_seconds": 0.5,
    "pool.warm_agents": 0,
}
STRANGERS = """import os, time
child = os.fork()
if child:
    os.setpgid(child, child)  # as an agent gives its child a group of its own
    print(child, flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Scene:
    """What the cases share."""

    folder: Path
    emulator: Emulator
    portal: BlockingPortal
    redis_socket: Path
    stack: ExitStack

    def proxy(self) -> FaultProxy:
        """A way to the Redis."""
        serve = FaultProxy(self.redis_socket).serve()
        return self.stack.enter_context(self.portal.wrap_async_context_manager(serve))

    def sweep(self, count: int = 1, **parameters: Any) -> str:
        """Runs that end when their folder's `release` appears."""
        return self.emulator.create_sweep(sweep_config(count, seconds=600.0, **parameters))

    def node(self, name: str, url: str, sweep: str, *flags: str, folder: str = "") -> Node:
        """A started node, in a folder of its own."""
        times = [word for key, value in SCALED.items() for word in ("--set", f"{key}={value}")]
        words = ("--redis-url", url, *times, *flags)
        node = Node(name, self.emulator, self.folder / (folder or name), sweep, words)
        self.stack.callback(node.end)
        return node.start()


def trained(node: Node, count: int = 1) -> list[dict[str, Any]]:
    """The slots of a node once `count` trainings log."""
    slots = node.wait_running(count)
    wait_until("the trainings log", lambda: len(node.records("init")) >= count)
    return slots


def ended_by(node: Node, signum: int) -> tuple[int, float]:
    """Exit code, and the seconds from a notice to the last word of the daemon.

    By its own record: on a loaded machine the interpreter's end alone may take seconds.
    """
    node.send(signum)
    code = node.wait(60)
    told = {event["event"]: datetime.fromisoformat(event["ts"]) for event in node.events()}
    return code, (told["daemon_stopped"] - told["notice_received"]).total_seconds()


# --- the cases ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Kept:
    """Two trainings, one of which ends by itself while Redis is away."""

    node: Node
    pids: set[int]
    stays_pid: int
    alive: bool
    status: dict[str, Any]
    status_code: int
    exit_code: int


def kept(scene: Scene) -> Kept:
    """Redis is a black hole for ten times the TTL."""
    proxy = scene.proxy()
    node = scene.node("kept", proxy.url, scene.sweep(3, on_term="zero"), "--slots", "2",
                      "--until-done")  # fmt: skip
    stays, ends = trained(node, 2)
    proxy.black_hole, began = True, monotonic()
    wait_until("Redis is missed", lambda: node.events("redis_unreachable"))
    os.kill(ends["pid"], signal.SIGTERM)  # its own end: exit 0
    wait_until("its end is recorded", node.history)
    wait_until("ten times the TTL", lambda: monotonic() - began > 10 * TTL)
    shown = node.ctl_raw("--json", "status")
    alive = stays["pid"] in node.processes()
    proxy.black_hole = False
    wait_until("the third run is claimed", lambda: len(node.records("init")) == 3)
    node.release()
    return Kept(node, {stays["pid"], ends["pid"]}, stays["pid"], alive, json.loads(shown.stdout),
                shown.returncode, node.wait())  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """SIGTERM to a daemon whose Redis is a black hole, and its next start."""

    node: Node
    code: int
    seconds: float
    journal: int
    left: dict[int, str]
    next_code: int


def ended(scene: Scene) -> Ended:
    """Its training ignores the notice, so that the whole stop budget is used up."""
    proxy = scene.proxy()
    node = scene.node("ended", proxy.url, scene.sweep(on_term="ignore"), "--slots", "1")
    trained(node)
    proxy.black_hole = True
    wait_until("Redis is missed", lambda: node.events("redis_unreachable"))
    code, seconds = ended_by(node, signal.SIGTERM)
    journal, left = journalled(node), node.processes()
    proxy.black_hole = False
    node.release()
    return Ended(node, code, seconds, journal, left, node.start("--until-done").wait())


def journalled(node: Node) -> int:
    """Claims in the journal of a node."""
    return len(list((node.state_dir / "leases").glob("*.json")))


@dataclass(frozen=True)
class Waited:
    """A daemon that finds no Redis at its start."""

    node: Node
    said: list[dict[str, Any]]
    shown: dict[str, Any]
    code: int
    seconds: float


def waited(scene: Scene, name: str, url: str) -> Waited:
    """Until it has said so; then SIGTERM."""
    node = scene.node(name, url, scene.sweep(), "--slots", "1")
    said = wait_until("it says so", lambda: node.events("redis_unreachable"))
    shown = wait_until("it answers", node.status)
    return Waited(node, said, shown, *ended_by(node, signal.SIGTERM))


def shut(scene: Scene) -> Waited:
    """Connections are taken and nothing comes back."""
    proxy = scene.proxy()
    proxy.black_hole = True
    return waited(scene, "shut", proxy.url)


def down(scene: Scene) -> Waited:
    """Connections are refused."""
    with socket.socket() as sock:  # bound but not listening
        sock.bind(("127.0.0.1", 0))
        return waited(scene, "down", f"redis://127.0.0.1:{sock.getsockname()[1]}")


@dataclass(frozen=True)
class Paused:
    """A daemon that was stopped while another node took its run."""

    node: Node
    taker: Node
    run_id: str
    first_request: bytes
    killed: set[int]
    """The processes of its training, gone afterwards."""
    lease_before: dict[str, Any]
    lease_after: dict[str, Any]


def paused(scene: Scene) -> Paused:
    """SIGSTOP beyond TTL and grace; the server hands the run out again."""
    proxy, straight = scene.proxy(), scene.proxy()
    sweep = scene.sweep(mark=1, children=1)
    node = scene.node("paused", proxy.url, sweep, "--slots", "1")
    (slot,) = trained(node)
    (begun,) = node.records("begin")
    tree = {slot["pid"], *begun["children"]}
    taker = scene.node("taker", straight.url, sweep, "--slots", "1", folder="paused")
    node.send(signal.SIGSTOP)
    scene.emulator.silence_run(slot["run_id"])
    (taken,) = taker.wait_running(1)
    wait_until("the taker logs", lambda: len(node.records("init")) == 2)
    before = taker.ctl("leases", "show", taken["run_id"])
    requests: list[bytes] = []
    proxy.on_request = requests.append
    node.send(signal.SIGCONT)
    wait_until("its end is recorded", node.history)
    after = taker.ctl("leases", "show", taken["run_id"])
    node.release()
    wait_until("the taker has finished", taker.history)
    first = next(request for request in requests if b"XREAD" not in request)
    return Paused(node, taker, slot["run_id"], first, tree - set(node.processes()), before, after)


@dataclass(frozen=True)
class Reused:
    """A daemon that was killed with its training, whose pids belong to somebody else by now."""

    node: Node
    run_id: str
    strangers: dict[int, int | None]
    """Pids and their start times before the restart."""
    lease: dict[str, Any]


def reused(scene: Scene) -> Reused:
    """The record of the stay names a session that has nothing to do with us."""
    node = scene.node("reused", scene.proxy().url, scene.sweep(), "--slots", "1")
    (slot,) = trained(node)
    node.send(signal.SIGKILL)
    node.wait()
    (record,) = (node.state_dir / "stays").glob("*.json")
    stay = json.loads(record.read_bytes())
    os.kill(stay["shim_pid"], signal.SIGKILL)
    wait_until("the training went with it", lambda: slot["pid"] not in node.processes())
    stranger = subprocess.Popen([sys.executable, "-c", STRANGERS], stdout=subprocess.PIPE,
                                start_new_session=True)  # fmt: skip
    scene.stack.callback(stranger.wait)
    scene.stack.callback(os.killpg, stranger.pid, signal.SIGKILL)
    assert stranger.stdout is not None
    with stranger.stdout:
        child = int(stranger.stdout.readline())
    scene.stack.callback(os.kill, child, signal.SIGKILL)
    record.write_text(json.dumps({**stay, "shim_pid": stranger.pid, "agent_pid": stranger.pid}))
    strangers = {pid: start_time(pid) for pid in (stranger.pid, child)}
    node.start("--slots", "0")
    wait_until("its end is recorded", node.history)
    wait_until("it is released", lambda: node.events("lease_released"))
    return Reused(node, slot["run_id"], strangers, node.ctl("leases", "show", slot["run_id"]))
