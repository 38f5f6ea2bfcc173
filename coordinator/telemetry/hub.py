"""Passes each event to all followers, without ever waiting for them.

Owns the subscribers and their bounded buffers. A subscriber that is too slow loses its oldest
events and is told how many; logging is not affected.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import anyio

Event = dict[str, Any]
"""`ts, event, level, node`, then the fields of the event: plain JSON values."""


class Subscription:
    """An async iterator of events; close it, or use it as a context manager."""

    def __init__(self, hub: "Hub", buffer: int, lost_event: Callable[[int], Event]) -> None:
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._past: deque[Event] = deque()
        self._events: deque[Event] = deque(maxlen=buffer)
        self._lost_event = lost_event
        self._lost = 0
        self._closed = False
        self._waiting: anyio.Event | None = None

    def preload(self, past: Iterable[Event]) -> None:
        """Deliver `past` before everything else; it does not count towards the buffer."""
        self._past.extend(past)

    def offer(self, event: Event) -> None:
        """Take one event from any thread (called by the hub, under its lock)."""
        if len(self._events) == self._events.maxlen:
            self._lost += 1
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """End the iteration; what is buffered is still delivered."""
        with self._hub.lock:
            self._hub.remove(self)
            self._closed = True
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            try:
                self._loop.call_soon_threadsafe(waiting.set)
            except RuntimeError:  # the loop and its follower have ended
                self._hub.remove(self)

    def _next(self) -> Event | None:
        if self._past:
            return self._past.popleft()
        if self._lost:
            lost, self._lost = self._lost, 0
            return self._lost_event(lost)
        return self._events.popleft() if self._events else None

    async def __anext__(self) -> Event:
        while True:
            with self._hub.lock:
                event = self._next()
                if event is not None:
                    return event
                if self._closed:
                    raise StopAsyncIteration
                waiting = self._waiting = anyio.Event()
            await waiting.wait()

    def __aiter__(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Hub:
    """All subscriptions. `lock` orders publishing against subscribing."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._subscriptions: list[Subscription] = []

    def add(self, subscription: Subscription) -> None:
        """Start to deliver to `subscription`; the caller holds the lock."""
        self._subscriptions.append(subscription)

    def remove(self, subscription: Subscription) -> None:
        """Stop delivering to `subscription`; does nothing if it is not there."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def publish(self, event: Event) -> None:
        """Offer `event` to all subscriptions; the caller holds the lock."""
        for subscription in tuple(self._subscriptions):
            subscription.offer(event)

    def close(self) -> None:
        """End every subscription."""
        for subscription in tuple(self._subscriptions):
            subscription.close()
