"""The statistics of all measurements: what a median, a percentile and a ratio are here.

Owns the arithmetic, and nothing else: it must never read a clock, a file or an option.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor


@dataclass(frozen=True, slots=True)
class Spread:
    """How a set of durations is spread; all in the unit of the durations."""

    count: int
    p50: float
    p90: float
    p99: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """The percentiles of `values`, which must not be empty."""
    return Spread(
        count=len(values),
        p50=median(values),
        p90=quantile(values, 0.9),
        p99=quantile(values, 0.99),
        most=max(values),
    )


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of all values lie, interpolated between its neighbours."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low, high = ordered[floor(at)], ordered[ceil(at)]
    return low + (high - low) * (at - floor(at))


def ratio(theirs: float, ours: float) -> float:
    """How many times ours theirs is; above 1, ours is the smaller one. Both may be 0."""
    if not ours:
        return float("inf") if theirs else 1.0
    return theirs / ours
