"""What has happened in the emulator, in order, for tests to read.

Owns the list of events and the counts of operations. It must never decide anything. An idle
heartbeat answered with nothing is only counted, or a pool of agents would fill the memory.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.emulator.records import Now

Event = dict[str, Any]


class History:
    """An append-only list of events; `sink` sees each as it happens (a JSONL file, for example)."""

    def __init__(self, sink: Callable[[Event], None] | None = None) -> None:
        """Start empty."""
        self._events: list[Event] = []
        self._sink = sink
        self.operations: Counter[str] = Counter()
        self.clients: dict[str, set[str]] = {}

    def record(self, now: Now, what: str, **data: object) -> None:
        """Append one event. `n` grows by one, `t` is monotonic seconds, `ts` UTC."""
        event = {"n": len(self._events), "t": now.monotonic, "ts": now.iso, "what": what, **data}
        self._events.append(event)
        if self._sink is not None:
            self._sink(event)

    def count_operation(self, now: Now, name: str, client: str) -> None:
        """Count a request by its operation; the first one of each kind of client is an event."""
        self.operations[name] += 1
        clients = self.clients.setdefault(name, set())
        if client not in clients:
            clients.add(client)
            self.record(now, "operation_seen", operation=name, client=client)

    def since(self, after: int = -1) -> list[Event]:
        """All events with a number above `after`."""
        return self._events[max(0, after + 1) :]
