"""Which of the tasks of one srun work."""

import pytest

from coordinator.core.rank import RankGate, gated

FIRST = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SECOND_ON_FIRST_NODE = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
FIRST_ON_SECOND_NODE = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("gate", "environ", "works"),
    [
        (RankGate.OFF, SECOND_ON_FIRST_NODE, True),
        (RankGate.NODE, FIRST, True),
        (RankGate.NODE, SECOND_ON_FIRST_NODE, False),
        (RankGate.NODE, FIRST_ON_SECOND_NODE, True),
        (RankGate.JOB, FIRST, True),
        (RankGate.JOB, SECOND_ON_FIRST_NODE, False),
        (RankGate.JOB, FIRST_ON_SECOND_NODE, False),
        (RankGate.NODE, {}, True),
        (RankGate.JOB, {}, True),
    ],
)
def test_one_task_of_each_node_or_of_the_job_works(
    gate: RankGate, environ: dict[str, str], works: bool
) -> None:
    assert (gated(gate, environ) is None) is works


def test_the_others_say_why_in_one_line() -> None:
    reason = gated(RankGate.NODE, SECOND_ON_FIRST_NODE)
    assert reason == "SLURM_LOCALID is 1: only task 0 of this node runs (rank_gate = node)"
