"""Counts GPUs through NVML and assigns them to slots.

Owns CUDA_VISIBLE_DEVICES of trainings. The daemon's own devices (from SLURM or a container) are the
limit: other devices are never assigned. Without nvidia-ml-py or a driver there are no GPUs.
"""

import importlib
from collections.abc import Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Names (indices or UUIDs) of the GPUs that we can use; call it in a thread: NVML may be slow.

    An empty or negative CUDA_VISIBLE_DEVICES means none, as in CUDA. Source: CUDA C++
    Programming Guide, "CUDA Environment Variables".
    """
    if VARIABLE in environ:
        names = [name.strip() for name in environ[VARIABLE].split(",")]
        stop = next((i for i, name in enumerate(names) if name in {"", "-1"}), len(names))
        return names[:stop]
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        try:
            return [str(index) for index in range(nvml.nvmlDeviceGetCount())]
        finally:
            nvml.nvmlShutdown()
    except Exception:  # NVML raises its own class, which is absent without it
        return []


def assign(gpus: Sequence[str], slot: int, per_slot: int) -> list[str]:
    """The GPUs of `slot`; slots share GPUs if there are more slots than GPUs."""
    if not gpus or per_slot == 0:
        return []
    start = slot * per_slot
    return [gpus[(start + offset) % len(gpus)] for offset in range(min(per_slot, len(gpus)))]
