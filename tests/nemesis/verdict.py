"""The verdict on a play: what began in which window, and which promises were broken.

Owns the promises in numbers. Works on what the judge found and on what the play counted; it must
never look at processes or files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.core.lease import LeaseSettings
from tests.nemesis.judge import Overlap, Stay, busy_seconds, fence_faults, overlaps


@dataclass
class Row:
    """One window of the play."""

    fault: str
    began: float
    long: bool
    """Its faults outlast a lease, so that overlaps may be, but must end soon after."""
    ended: float = 0.0
    healed: list[float] = field(default_factory=list)
    """When each episode of faults was over."""
    stays: list[Stay] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    lost: int = 0
    utilisation: float = 0.0


@dataclass
class Result:
    """All that was found."""

    rows: list[Row]
    fence_faults: list[tuple[Stay, Stay]]
    facts: Mapping[str, object]
    skipped: str = ""
    broken: list[str] = field(default_factory=list)


def attribute(
    rows: Sequence[Row], stays: Sequence[Stay], lost: Sequence[tuple[float, str]], slots: int
) -> None:
    """Everything belongs to the window in which it began; the last one never closes."""
    found = overlaps(stays)
    for row in rows:
        until = float("inf") if row is rows[-1] else row.ended
        row.stays = [stay for stay in stays if row.began <= stay.began < until]
        row.overlaps = [pair for pair in found if row.began <= pair.began < until]
        row.lost = sum(row.began <= at < until for at, _ in lost)
        span = (row.ended - row.began) * slots
        row.utilisation = busy_seconds(stays, row.began, row.ended) / span


def judge(
    rows: list[Row],
    stays: Sequence[Stay],
    lost: Sequence[tuple[float, str]],
    facts: Mapping[str, object],
    *,
    slots: int,
    settings: LeaseSettings,
    slack_seconds: float,
) -> Result:
    """The filled rows and each broken promise in words."""
    attribute(rows, stays, lost, slots)
    result = Result(rows, fence_faults(stays), facts)
    for row in rows:
        result.broken += _broken(row, settings, slack_seconds)
    result.broken += [
        f"run {after.run_id}: fence {after.fence} came after {before.fence}"
        for before, after in result.fence_faults
    ]
    result.broken += [f"lost: {words}" for _, words in lost]
    return result


def _broken(row: Row, settings: LeaseSettings, slack_seconds: float) -> list[str]:
    words = []
    if not row.stays:
        words.append(f"{row.fault}: nothing was granted, so nothing is shown")
    for pair in row.overlaps:
        over = excess(pair, row, settings) - slack_seconds
        if not row.long or over > 0:
            late = f", {over:.3f} s longer than allowed" if row.long else ""
            words.append(f"{row.fault}: {describe(pair)}{late}")
    return words


def describe(pair: Overlap) -> str:
    """An overlap in words."""
    first, second = pair.first, pair.second
    return (
        f"run {first.run_id} was held by {first.node} (fence {first.fence}) and {second.node} "
        f"(fence {second.fence}) for {pair.seconds:.3f} s"
    )


def excess(pair: Overlap, row: Row, settings: LeaseSettings) -> float:
    """Seconds by which an overlap outlasted one renewal and the stop budget after the contact."""
    healed = min((at for at in row.healed if at > pair.began), default=pair.began)
    renewal = 1.1 * settings.renew_seconds + settings.timeout_seconds
    return pair.ended - healed - renewal - settings.stop_budget_seconds
