"""The judge counts what was held twice, and nothing else."""

from tests.scale.judge import Interval, duplicates, gaps, handoffs, held_now, share


def held(run: str, node: str, began: float, ended: float | None, asked: float = 0.0) -> Interval:
    return Interval(run, node, 1, asked, began, ended)


def test_neighbours_that_only_touch_are_no_duplicates() -> None:
    touching = [held("r1", "a", 0, 1), held("r1", "b", 1, None)]
    assert duplicates([*touching, held("r2", "b", 0, 9)]) == []


def test_each_joining_holder_is_found_also_within_one_that_never_ends() -> None:
    endless, others = held("r1", "a", 0, None), [held("r1", "b", 1, 2), held("r1", "c", 5, 6)]
    found = duplicates([endless, *others, held("r2", "c", 0, 9)])
    assert [(first.node, second.node) for first, second in found] == [("a", "b"), ("a", "c")]


def test_a_hand_off_is_one_that_was_waited_for() -> None:
    waited = [held("r1", "a", 0, 10), held("r1", "b", 10.5, None, asked=9)]
    came_later = [held("r2", "a", 0, 10), held("r2", "b", 12, None, asked=11)]
    assert handoffs([*waited, *came_later], since=5) == [0.5]
    assert handoffs(waited, since=11) == []


def test_a_gap_is_counted_after_a_lost_node_only() -> None:
    lost = [held("r1", "gone", 0, 10), held("r1", "b", 95, None)]
    kept = [held("r2", "a", 0, 10), held("r2", "b", 11, None)]
    assert gaps([*lost, *kept], {"gone"}) == [85]
    assert held_now([*lost, *kept]) == {"r1", "r2"}


def test_the_share_of_few_values_is_one_of_them() -> None:
    assert share([], 0.99) == 0.0
    assert share([3.0, 1.0, 2.0], 0.5) == 2.0
    assert share([3.0, 1.0, 2.0], 0.99) == 3.0
