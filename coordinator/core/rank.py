"""Which tasks of one `srun` run, and which exit at once.

Source: srun(1), "OUTPUT ENVIRONMENT VARIABLES": SLURM_PROCID is the rank of a task in its job step,
SLURM_LOCALID its rank on its node; both count from 0 in every step, including the batch step.
"""

import enum
from collections.abc import Mapping


class RankGate(enum.StrEnum):
    """Which of the daemons that are started together run."""

    OFF = "off"
    NODE = "node"
    JOB = "job"


_VARIABLES = {RankGate.NODE: "SLURM_LOCALID", RankGate.JOB: "SLURM_PROCID"}


def gated(gate: RankGate, environ: Mapping[str, str]) -> str | None:
    """Why this task must not run, in one line; None if it may.

    If SLURM has set no rank, there is only one task.
    """
    variable = _VARIABLES.get(gate)
    rank = environ.get(variable, "0") if variable else "0"
    if rank == "0":
        return None
    return f"{variable} is {rank}: only task 0 of this {gate} runs (rank_gate = {gate})"
