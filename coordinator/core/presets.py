"""How each launcher and framework is asked to save: the signal, and the process that gets it.

Owns the presets of `[preemption]` as data. Source: measured on Linux with Python 3.11, torch
2.13.0, accelerate 1.15.0, deepspeed 0.19.8 and lightning 2.6.6, each started as the run shim does
it and its main process signalled once; docs/training.md, "Launchers and frameworks", has the
results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

GRACEFUL_SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
"""The signals to the daemon that are preemption notices."""
WORKER_VARIABLES = frozenset({"LOCAL_RANK", "ACCELERATE_MIXED_PRECISION"})
"""Variables that launchers set for the processes that train, but not for themselves.

torchrun, deepspeed and accelerate with several processes set the first, accelerate with one process
only the second.
"""


class Preset(StrEnum):
    """What the sweep's command starts."""

    PYTHON = "python"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    LIGHTNING = "lightning"


class Target(StrEnum):
    """Who gets the graceful signal; PRESET: defined by the preset."""

    PRESET = "preset"
    MAIN = "main"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class Asking:
    """How trainings are asked to save."""

    signals: Mapping[str, str]
    """Maps received signals to sent signals; has all of GRACEFUL_SIGNALS."""
    target: Target
    """MAIN or WORKERS."""
    save_seconds: float | None = None
    """Time after which the launcher itself kills its processes; None: no such limit."""


def _all_to(name: str) -> dict[str, str]:
    return dict.fromkeys(GRACEFUL_SIGNALS, name)


PRESETS: Mapping[Preset, Asking] = {
    Preset.PYTHON: Asking({name: name for name in GRACEFUL_SIGNALS}, Target.MAIN),
    # Passes TERM, INT and HUP on to each worker and waits 30 s; dies on USR1 and USR2 itself, with
    # its workers left behind.
    Preset.TORCHRUN: Asking(_all_to("SIGTERM"), Target.MAIN, save_seconds=30.0),
    # With one process it dies on every signal and the training gets none; with several it is
    # torchrun. Signals to its workers do not affect it.
    Preset.ACCELERATE: Asking(_all_to("SIGTERM"), Target.WORKERS),
    # Dies on every signal; neither the second launcher below it nor the workers get it.
    Preset.DEEPSPEED: Asking(_all_to("SIGTERM"), Target.WORKERS),
    # Ends on TERM with exit code 0, so the run would count as finished; under SLURM it re-queues
    # the whole job on USR1; does not use USR2. Its other ranks are children of the first.
    Preset.LIGHTNING: Asking(_all_to("SIGUSR2"), Target.MAIN),
}


def asking(preset: Preset, signals: Mapping[str, str], target: Target) -> Asking:
    """The preset with overrides: single signals, and the target."""
    known = PRESETS[preset]
    chosen = known.target if target is Target.PRESET else target
    # Only a launcher that gets the signal itself has a time limit.
    save_seconds = known.save_seconds if chosen is Target.MAIN else None
    return Asking({**known.signals, **signals}, chosen, save_seconds)
