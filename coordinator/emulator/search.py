"""Where a sweep's next configuration comes from: every point of a grid, or random draws.

Owns the reading of a sweep's `parameters` and `run_cap`. Pure values: the random generator is
passed in. It must never know runs or agents. A Bayesian sweep draws at random, since no test needs
more.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping

Point = dict[str, Any]


class SearchError(ValueError):
    """The sweep's configuration cannot be searched; the message goes to the user."""


class Search:
    """Hands out configurations one by one until the grid or the `run_cap` is exhausted."""

    def __init__(self, config: Mapping[str, Any], rng: random.Random) -> None:
        """Read `method`, `parameters` and `run_cap`; raise `SearchError` on nonsense."""
        parameters = config.get("parameters") if isinstance(config, dict) else None
        if not isinstance(parameters, dict):
            raise SearchError("Invalid sweep config: 'parameters' is a required property")
        self.method = str(config.get("method", "random"))
        self._parameters: dict[str, Any] = parameters
        self._rng = rng
        cap = config.get("run_cap")
        self._cap = int(cap) if cap is not None else None
        self._made = 0
        size = None
        if self.method == "grid":
            self._grid = _grid(parameters)
            size = math.prod(len(axis) for axis in _axes(parameters).values())
        bounds = [bound for bound in (self._cap, size) if bound is not None]
        self.expected: int | None = min(bounds) if bounds else None

    @property
    def made(self) -> int:
        """How many configurations have been made so far."""
        return self._made

    @property
    def exhausted(self) -> bool:
        """Whether there is no next configuration."""
        return self.expected is not None and self._made >= self.expected

    def next(self) -> Point | None:
        """The next configuration, or None when exhausted."""
        if self.exhausted:
            return None
        self._made += 1
        if self.method == "grid":
            return next(self._grid)
        return {name: _draw(name, spec, self._rng) for name, spec in self._parameters.items()}


def _grid(parameters: Mapping[str, Any]) -> Iterator[Point]:
    axes = _axes(parameters)
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _axes(parameters: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: _axis(name, spec) for name, spec in parameters.items()}


def _axis(name: str, spec: Mapping[str, Any]) -> list[Any]:
    """All values that a grid tries for one parameter."""
    if not isinstance(spec, dict):
        raise SearchError(f"Invalid sweep config: parameter {name} must be a mapping")
    if "value" in spec:
        return [spec["value"]]
    if "values" in spec:
        return list(spec["values"])
    if "parameters" in spec:
        return list(_grid(spec["parameters"]))
    low, high = spec.get("min"), spec.get("max")
    if isinstance(low, int) and isinstance(high, int):
        return list(range(low, high + 1))
    raise SearchError(
        f"Invalid sweep config: Parameter {name} is a disallowed type with grid search. "
        "Grid search requires all parameters to be categorical, constant, int_uniform, or q_uniform"
    )


def _draw(name: str, spec: Mapping[str, Any], rng: random.Random) -> Any:
    """One random value of one parameter."""
    if not isinstance(spec, dict):
        raise SearchError(f"Invalid sweep config: parameter {name} must be a mapping")
    if "value" in spec:
        return spec["value"]
    if "values" in spec:
        return rng.choices(list(spec["values"]), weights=spec.get("probabilities"))[0]
    if "parameters" in spec:
        return {key: _draw(key, inner, rng) for key, inner in spec["parameters"].items()}
    if "mu" in spec or "sigma" in spec:
        value = rng.gauss(float(spec.get("mu", 0.0)), float(spec.get("sigma", 1.0)))
        return math.exp(value) if "log" in str(spec.get("distribution")) else value
    if "min" in spec and "max" in spec:
        return _draw_between(spec, rng)
    raise SearchError(f"Invalid sweep config: parameter {name} has no values and no bounds")


def _draw_between(spec: Mapping[str, Any], rng: random.Random) -> float | int:
    low, high = spec["min"], spec["max"]
    distribution = str(spec.get("distribution", ""))
    if isinstance(low, int) and isinstance(high, int) and distribution in {"", "int_uniform"}:
        return rng.randint(low, high)
    if distribution == "log_uniform_values":
        value = math.exp(rng.uniform(math.log(low), math.log(high)))
    elif distribution == "log_uniform":
        value = math.exp(rng.uniform(low, high))
    else:
        value = rng.uniform(low, high)
    if distribution.startswith("q_"):
        quantum = float(spec.get("q", 1.0))
        return round(value / quantum) * quantum
    return value
