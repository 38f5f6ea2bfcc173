"""GPUs are dealt to slots and none that the daemon was not given is ever used."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.gpu import assign, visible_gpus


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("3", ["3"]),
        (" 0 , 1 ", ["0", "1"]),
        ("GPU-5e1f,MIG-77aa", ["GPU-5e1f", "MIG-77aa"]),
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("0,,1", ["0"]),
        ("NoDevFiles", ["NoDevFiles"]),
    ],
)
def test_what_the_daemon_was_given_is_read_as_cuda_reads_it(text: str, names: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": text}) == names


def test_each_slot_gets_its_own_gpus_in_order() -> None:
    gpus = ["0", "1", "2", "3"]
    assert [assign(gpus, slot, 1) for slot in range(4)] == [["0"], ["1"], ["2"], ["3"]]
    assert [assign(gpus, slot, 2) for slot in range(2)] == [["0", "1"], ["2", "3"]]


def test_more_slots_than_gpus_share_them_in_turn() -> None:
    assert [assign(["0", "1"], slot, 1) for slot in range(4)] == [["0"], ["1"], ["0"], ["1"]]


@pytest.mark.parametrize(("gpus", "per_slot"), [([], 1), (["0"], 0), ([], 0)])
def test_without_gpus_or_without_a_wish_for_them_none_is_dealt(
    gpus: list[str], per_slot: int
) -> None:
    assert assign(gpus, 0, per_slot) == []


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 99).map(str), unique=True, max_size=16),
    st.integers(0, 1023),
    st.integers(0, 20),
)
def test_a_slot_never_gets_a_gpu_twice_nor_one_that_was_not_given(
    gpus: list[str], slot: int, per_slot: int
) -> None:
    dealt = assign(gpus, slot, per_slot)
    assert len(dealt) == len(set(dealt)) == min(per_slot, len(gpus))
    assert set(dealt) <= set(gpus)


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(1, 8))
def test_as_long_as_there_are_enough_no_two_slots_share_a_gpu(count: int, per_slot: int) -> None:
    gpus = [str(number) for number in range(count)]
    slots = count // per_slot
    dealt = [gpu for slot in range(slots) for gpu in assign(gpus, slot, per_slot)]
    assert len(dealt) == len(set(dealt)) == slots * per_slot
