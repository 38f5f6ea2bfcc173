"""coordinatord as a task of srun that is not to work."""

import pytest
from click.testing import CliRunner

from coordinator.daemon.command import coordinatord


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (["--rank-gate", "node"], {"SLURM_LOCALID": "1"}),
        ([], {"SLURM_PROCID": "3", "COORDINATOR_RANK_GATE": "job"}),
        (["--set", "rank_gate=job"], {"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}),
    ],
)
def test_a_task_that_is_not_to_work_says_so_in_one_line_and_exits_with_0(
    arguments: list[str], environ: dict[str, str]
) -> None:
    done = CliRunner().invoke(coordinatord, arguments, env=environ)
    assert (done.exit_code, done.output.count("\n")) == (0, 1)
    assert "task 0 of this" in done.output
