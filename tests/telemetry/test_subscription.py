"""Those who follow the events."""

import threading
from functools import partial
from pathlib import Path

import anyio
import pytest
import structlog
from anyio import to_thread

from coordinator.telemetry import Subscription, configure
from tests.telemetry.conftest import Pipeline

pytestmark = pytest.mark.anyio
log = structlog.get_logger()


async def _take(subscription: Subscription, count: int) -> list[object]:
    with anyio.fail_after(10):
        return [
            event.get("number", event.get("lost", event["event"]))
            for event in [await anext(subscription) for _ in range(count)]
        ]


async def test_every_subscriber_gets_every_event_in_order(pipeline: Pipeline) -> None:
    with pipeline.telemetry.subscribe() as one, pipeline.telemetry.subscribe() as two:
        for number in range(20):
            log.info("counted", number=number)
        assert await _take(one, 20) == await _take(two, 20) == list(range(20))


async def test_a_subscriber_that_waits_is_woken_from_another_thread(pipeline: Pipeline) -> None:
    taken: list[object] = []
    async with anyio.create_task_group() as group:
        with pipeline.telemetry.subscribe() as subscription:

            async def take() -> None:
                taken.extend(await _take(subscription, 3))

            group.start_soon(take)
            for number in range(3):
                await to_thread.run_sync(partial(log.info, "counted", number=number))
    assert taken == [0, 1, 2]


async def test_a_slow_subscriber_loses_the_oldest_and_is_told_how_many(pipeline: Pipeline) -> None:
    with pipeline.telemetry.subscribe(buffer=5) as subscription:
        for number in range(12):
            log.info("counted", number=number)
        lost = await anext(subscription)
        assert (lost["event"], lost["lost"], lost["node"]) == ("events_lost", 7, "node-1")
        assert await _take(subscription, 5) == [7, 8, 9, 10, 11]
        log.info("counted", number=12)
        assert await _take(subscription, 1) == [12]


async def test_closing_ends_the_iteration_after_what_is_buffered(pipeline: Pipeline) -> None:
    subscription = pipeline.telemetry.subscribe()
    log.info("counted", number=1)
    subscription.close()
    log.info("counted", number=2)
    with anyio.fail_after(10):
        assert [event["number"] async for event in subscription] == [1]


async def test_the_end_of_telemetry_ends_those_who_follow(pipeline: Pipeline) -> None:
    subscription = pipeline.telemetry.subscribe()
    async with anyio.create_task_group() as group:

        async def drain() -> None:
            with anyio.fail_after(10):
                assert [event async for event in subscription] == []

        group.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        pipeline.telemetry.close()


async def test_past_and_present_join_without_gap_or_repetition_through_rotation(
    tmp_path: Path,
) -> None:
    """A thread logs without pause while one starts to follow, with files of a hundred lines."""
    total, past = 3000, 400
    began = threading.Event()

    def count() -> None:
        for number in range(total):
            log.info("counted", number=number)
            if number == past:
                began.set()

    with configure("json", tmp_path / "events.jsonl", 10_000, 50, "n") as telemetry:
        thread = threading.Thread(target=count)
        thread.start()
        await to_thread.run_sync(began.wait)
        with await telemetry.follow(past, buffer=total) as subscription:
            first = (await _take(subscription, 1))[0]
            assert isinstance(first, int)
            assert first > 0
            assert await _take(subscription, total - first - 1) == list(range(first + 1, total))
        thread.join()
        assert (tmp_path / "events.jsonl.5").exists()
