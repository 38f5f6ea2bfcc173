"""What `coordinatorctl` asks for and what it is answered: targets, arithmetic, refusals."""

import signal
from pathlib import Path
from time import monotonic

import pytest

from coordinator.core.model import DownMode, NodeState
from coordinator.core.protocol import (
    Done,
    Drain,
    GetLeases,
    GetRuns,
    GetStatus,
    Invalid,
    Pause,
    Preempt,
    Refused,
    RequestUnion,
    Resume,
    Scale,
    Signal,
    StatusView,
    Stop,
    Undrain,
)
from coordinator.supervisor.commands import MOST_SLOTS
from coordinator.supervisor.pool import PREEMPTED_EXIT_CODE
from tests.supervisor.node import GRACE_SECONDS, node

pytestmark = pytest.mark.anyio


# --- scale ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "slots"),
    [("8", 8), ("+2", 6), ("-1", 3), ("0", 0), ("-4", 0), ("+0", 4), ("007", 7),
     (str(MOST_SLOTS), MOST_SLOTS)],
)  # fmt: skip
async def test_slots_are_set_or_changed_by_a_difference(
    target: str, slots: int, tmp_path: Path
) -> None:
    async with node(tmp_path, slots=4) as ours:
        assert await ours.commands.handle(Scale(target)) == Done(f"slots: 4 -> {slots}")
        assert ours.pool.desired_slots == slots


@pytest.mark.parametrize(
    "target", ["", "+", "-", "eight", "1.5", " 8", "8 ", "--1", "+-1", "0x8", "-5", "1025", "99999",
               "+99999", "123456", "8\n"],
)  # fmt: skip
async def test_a_number_of_slots_that_is_none_or_too_large_changes_nothing(
    target: str, tmp_path: Path
) -> None:
    async with node(tmp_path, slots=4) as ours:
        answer = await ours.commands.handle(Scale(target))
        assert isinstance(answer, Invalid)
        assert "\n" not in answer.message
        assert ours.pool.desired_slots == 4


# --- targets --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "hit"), [("0", [0]), ("1", [1]), ("run-b", [1]), ("all", [0, 1])]
)
async def test_a_target_is_a_slot_a_run_or_all(target: str, hit: list[int], tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        shims = [await ours.train(0, "run-a"), await ours.train(1, "run-b")]
        answer = await ours.commands.handle(Preempt(target))
        assert answer == Done(f"preempting {len(hit)} training{'s' if len(hit) > 1 else ''}")
        assert [n for n, shim in enumerate(shims) if shim.training.attempt.preempted] == hit
        for number in hit:
            assert await shims[number].told() == {
                "do": "signal", "signal": signal.SIGUSR2, "once": True, "preempt": True,
            }  # fmt: skip
        assert ours.pool.state is NodeState.RUNNING, "the slots take new runs"


@pytest.mark.parametrize("request_of", [Preempt, lambda target: Signal("TERM", target)])
async def test_a_target_that_names_no_training_is_refused_by_why_it_does_not(
    request_of: type[Preempt], tmp_path: Path
) -> None:
    async with node(tmp_path) as ours:
        ours.add_slot(1)
        assert await ours.commands.handle(request_of("1")) == Refused("slot 1 has no training")
        assert await ours.commands.handle(request_of("all")) == Refused("no training runs here")
        for unknown in ("2", "run-x", "", "ALL", "-1"):
            answer = await ours.commands.handle(request_of(unknown))
            assert isinstance(answer, Invalid)
            assert repr(unknown) in answer.message


async def test_an_ended_grace_can_be_given_with_the_preemption(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        await ours.commands.handle(Preempt("0", grace_seconds=0.0))
        assert {(await shim.told())["do"], (await shim.told())["do"]} == {"signal", "kill_tree"}


async def test_a_negative_grace_is_refused_and_nothing_is_preempted(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        for target in ("0", None):
            answer = await ours.commands.handle(Preempt(target, grace_seconds=-1.0))
            assert isinstance(answer, Invalid)
        assert not shim.training.attempt.preempted
        assert ours.pool.state is NodeState.RUNNING


# --- signals --------------------------------------------------------------------------------------
@pytest.mark.parametrize("word", ["USR1", "SIGUSR1", "10"])
async def test_a_signal_goes_to_the_training_as_often_as_a_person_sends_it(
    word: str, tmp_path: Path
) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        for _ in range(2):
            answer = await ours.commands.handle(Signal(word, "run-a"))
            assert answer == Done("SIGUSR1 sent to 1 training")
            assert await shim.told() == {
                "do": "signal", "signal": 10, "once": False, "preempt": False,
            }  # fmt: skip
        assert not shim.training.attempt.preempted, "a signal of a person is no preemption"


async def test_an_unknown_signal_is_refused_before_the_target_is_looked_at(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        answer = await ours.commands.handle(Signal("NOPE", "nobody"))
        assert isinstance(answer, Invalid)
        assert answer.message.startswith("unknown signal 'NOPE'")


# --- switches -------------------------------------------------------------------------------------
async def test_pause_and_drain_are_switches_of_their_own(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        handle = ours.commands.handle
        steps: list[tuple[RequestUnion, str, NodeState]] = [
            (Pause(), "paused", NodeState.PAUSED),
            (Pause(), "paused", NodeState.PAUSED),
            (Drain(), "draining", NodeState.DRAINED),
            (Undrain(), "taking work again", NodeState.PAUSED),
            (Resume(), "claiming again", NodeState.RUNNING),
        ]
        for request, message, state in steps:
            assert await handle(request) == Done(message)
            assert ours.pool.state is state


async def test_a_node_drains_until_its_last_training_is_gone(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        await ours.train(0, "run-a")
        await ours.commands.handle(Drain())
        assert ours.pool.state is NodeState.DRAINING


async def test_a_preempted_node_gives_up_every_run_and_stays_drained(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        shims = [await ours.train(0, "run-a"), await ours.train(1, "run-b")]
        assert isinstance(await ours.commands.handle(Preempt()), Done)
        assert [shim.training.attempt.preempted for shim in shims] == [True, True]
        states = [ours.pool.state]
        assert isinstance(await ours.commands.handle(Undrain()), Done)
        assert [*states, ours.pool.state] == [NodeState.DRAINING, NodeState.RUNNING]


@pytest.mark.parametrize("down", DownMode)
async def test_a_stopping_daemon_ends_its_trainings_as_was_said_and_takes_no_other_wish(
    down: DownMode, tmp_path: Path
) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        answer = await ours.commands.handle(Stop(down))
        assert answer == Done("stopping; 1 trainings end first")
        assert ours.pool.state is NodeState.STOPPING
        assert shim.training.attempt.preempted is (down is not DownMode.DRAIN)
        requests: list[RequestUnion] = [
            Scale("8"), Drain(), Undrain(), Pause(), Resume(),
        ]  # fmt: skip
        for request in requests:
            assert await ours.commands.handle(request) == Refused("the daemon is stopping")
        assert ours.pool.desired_slots == 2


async def test_a_stop_may_be_made_harder(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        await ours.commands.handle(Stop(DownMode.DRAIN))
        await ours.commands.handle(Stop(DownMode.KILL))
        assert {(await shim.told())["do"], (await shim.told())["do"]} == {"signal", "kill_tree"}


# --- views ----------------------------------------------------------------------------------------
async def test_the_status_shows_what_is_there(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        await ours.train(1, "run-b")
        ours.add_slot(0)
        answer = await ours.commands.handle(GetStatus())
        assert isinstance(answer, Done)
        assert isinstance(answer.data, StatusView)
        shown = [(slot.slot, slot.run_id) for slot in answer.data.slots]
        assert shown == [(0, None), (1, "run-b")]
        assert (answer.data.state, answer.data.desired_slots) == (NodeState.RUNNING, 2)


async def test_living_runs_are_shown_without_an_outcome(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        await ours.train(0, "run-a")
        answer = await ours.commands.handle(GetRuns())
        assert isinstance(answer, Done)
        assert [(view.run_id, view.outcome) for view in answer.data] == [("run-a", None)]


async def test_leases_are_listed_also_when_they_are_off(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        await ours.train(0, "run-a")
        assert isinstance(await ours.commands.handle(GetLeases()), Done)


# --- notices --------------------------------------------------------------------------------------
async def test_the_first_notice_preempts_the_node_with_the_signal_that_it_was_mapped_to(
    tmp_path: Path,
) -> None:
    async with node(tmp_path) as ours:
        shim = await ours.train(0, "run-a")
        ours.pool.notice(signal.SIGUSR1, "SIGTERM")
        ours.pool.notice(signal.SIGUSR1, "SIGTERM")  # a storm
        assert (await shim.told())["signal"] == signal.SIGUSR1
        assert ours.pool.exit_code == PREEMPTED_EXIT_CODE
        assert shim.training.attempt.kill_at is not None
        assert shim.training.attempt.kill_at > monotonic() + GRACE_SECONDS / 2, (
            "the storm hurried nobody"
        )
        await ours.commands.handle(Signal("USR2", "0"))
        assert (await shim.told())["signal"] == signal.SIGUSR2, "and nothing came between"


# --- resume ---------------------------------------------------------------------------------------
async def test_resume_closes_the_breakers_that_the_status_shows(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        breakers = ours.pool.services.guards.breakers
        for number in range(5):
            await breakers.start_failed(0, f"r{number}")
        answer = await ours.commands.handle(GetStatus())
        assert isinstance(answer, Done)
        (view,) = answer.data.breakers
        assert (view.scope, view.state, view.failures) == ("node", "open", 5)
        assert [words for words in answer.data.degraded if "no agent started run r4" in words]

        assert await ours.commands.handle(Resume()) == Done("claiming again; breakers closed: 1")

        assert breakers.views() == []


async def test_a_run_that_is_not_quarantined_cannot_be_pardoned(tmp_path: Path) -> None:
    async with node(tmp_path) as ours:
        answer = await ours.commands.handle(Resume("r1"))
        assert answer == Refused("run 'r1' is not quarantined; see `leases show r1`")
