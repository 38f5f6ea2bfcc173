"""Nodes, emulators and Redis servers that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.emulator import Emulator, start_emulator
from tests.support.node import Node
from tests.support.redis import shared_redis


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real agents wait five seconds here and there; a loaded machine makes that a minute."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """A W&B backend of default behaviour."""
    running = start_emulator(tmp_path / "emulator")
    yield running
    running.stop()


@pytest.fixture
def make_node(emulator: Emulator, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """`make_node(sweep, *flags, name=…)`: a node in the test's directory, not started."""
    nodes: list[Node] = []

    def make(sweep: str, *flags: str, name: str = "a", **env: str) -> Node:
        node = Node(name, emulator, tmp_path / "n", sweep, flags, env)
        nodes.append(node)
        return node

    yield make
    for node in nodes:
        node.end()


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    """A private real Redis for the nodes of one test to share."""
    with shared_redis(tmp_path) as url:
        yield url
