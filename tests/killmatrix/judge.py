"""What must be true after a play: of the server's runs, of the stays on record, of what is left.

Owns the judgement; looks at the state of the server, the trainings' own records, the history that
the daemons kept and the kernel, at nothing that a daemon holds in memory.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from redis import Redis

from tests.support.node import overlaps

if TYPE_CHECKING:
    from tests.killmatrix.cells import Outcomes
    from tests.killmatrix.stage import Stage
    from tests.support.node import Node

RUNS_ON = frozenset({"crashed", "interrupted", "preempted", "lost_claim"})
"""A stay that ended so was cut off; the run goes on."""


def judge(stage: Stage, runs: int, expected: tuple[Outcomes, ...] | None) -> list[str]:
    """All that is wrong. `expected`: of the run that was hit; None: whatever its kills explain."""
    histories = history(stage.nodes)
    server = stage.emulator.state()["runs"]
    wrong = _of_server(server, histories, runs)
    for run in server:
        wrong += _of_run(stage, run, histories.get(run, []), expected)
    if found := overlaps(stage.nodes[0].records()):
        wrong.append(f"overlaps: {found}")
    for node in stage.nodes:
        wrong += _left(node)
    return [*stage.wrong, *wrong]


def history(nodes: list[Node]) -> dict[str, list[dict[str, Any]]]:
    """The stays of each run over all nodes, in the order in which they were granted."""
    views = [view for node in nodes for view in node.history()]
    found: dict[str, list[dict[str, Any]]] = {}
    for view in sorted(views, key=lambda view: view["fence"]):
        found.setdefault(view["run_id"], []).append(view)
    return found


def _of_server(server: dict[str, Any], histories: dict[str, Any], runs: int) -> list[str]:
    """All finished but one, which fails by itself."""
    states = Counter(run["state"] for run in server.values())
    wanted = Counter(finished=runs - 1, failed=1)
    if states != wanted:
        shown = {run: entry["state"] for run, entry in server.items()}
        return [f"the server's runs: {shown}, wanted {dict(wanted)}"]
    return [f"{run} has no stay on record" for run in server if run not in histories]


def _of_run(
    stage: Stage, run: str, stays: list[dict[str, Any]], expected: tuple[Outcomes, ...] | None
) -> list[str]:
    got = tuple(view["outcome"] for view in stays)
    wrong = []
    if len({view["fence"] for view in stays}) < len(stays):
        wrong.append(f"{run}: one stay stands twice in the history: {got}")
    own = stage.emulator.run(run)["state"]
    if expected is not None:
        allowed = expected if run == stage.hit_run else (("finished",),)
        if own == "failed":
            allowed = tuple((*outcomes[:-1], "failed") for outcomes in allowed)
        if got not in allowed:
            wrong.append(f"{run}: outcomes {got}, allowed {allowed}")
    elif not got or got[-1] != own or not RUNS_ON.issuperset(got[:-1]):
        wrong.append(f"{run}: outcomes {got}, and the server has it as {own}")
    elif len(got) > 1 + len(stage.killed):
        wrong.append(f"{run}: {len(got)} stays after {len(stage.killed)} kills: {got}")
    begun = [r for r in stage.nodes[0].records("begin") if r["run"] == run]
    if len(begun) > len(got):
        wrong.append(f"{run}: {len(begun)} trainings began and {len(got)} stays are on record")
    return wrong


def _left(node: Node) -> list[str]:
    """Processes, lease tokens, stays and commands that a node has left behind."""
    wrong = []
    if left := node.processes():
        wrong.append(f"{node.name} left processes: {left}")
    for folder in ("leases", "stays", "undelivered.json"):
        path = node.state_dir / folder
        if left_files := [path.name] if path.is_file() else sorted(p.name for p in path.glob("*")):
            wrong.append(f"{node.name} left in {folder}: {left_files}")
    return wrong


def leases_left(url: str) -> list[str]:
    """Leases that somebody holds at a shared server."""
    client = Redis.from_url(url)
    try:
        held = [key for key in client.scan_iter("*:index*") if client.zcard(key)]
    finally:
        client.close()
    return [f"leases stand in {held}"] if held else []
