"""A sweep under a real SLURM: an array job that shares a Redis, notices, preemption and requeue.

One story, played once for all tests of this module, since real agents take their time. An array of
three tasks and a single job train four runs. `scancel --signal=USR1 --batch` reaches one task,
`scontrol requeue` the single job, whose every process then gets SIGTERM, as at a preemption without
a grace; a job of a higher partition takes the whole node from the others. All are queued again,
resume their runs and finish.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.emulator import Emulator, start_emulator, wait_until
from tests.support.node import REPOSITORY, Node, marked, overlaps, sweep_config
from tests.support.redis import shared_redis
from tests.support.slurm import CPUS, PACKAGES, Cluster, missing, running_cluster

SCRIPT = REPOSITORY / "deploy" / "slurm" / "coordinator.sbatch"
COORDINATORD = Path(sys.executable).with_name("coordinatord")
TASKS = 3
RUNS = TASKS + 1


@dataclass
class Story:
    """The stage, and what was seen on the way."""

    cluster: Cluster
    emulator: Emulator
    array: Node
    """Marks and records of the array's tasks; they start their daemons by themselves."""
    urgent: Node
    """Those of the job of the higher partition."""
    redis_url: str
    scratch: Path
    told: str = ""
    """The task that got SIGUSR1."""
    others: list[str] = field(default_factory=list)
    """What the other tasks did when that one had been queued again."""
    abrupt: str = ""
    """The single job."""
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    """How the tasks and that job ended."""
    urgent_job: dict[str, str] = field(default_factory=dict)
    left_after_usr1: dict[int, str] = field(default_factory=dict)
    left_during_urgent: dict[int, str] = field(default_factory=dict)

    def play(self) -> None:
        """From the first job to the last end."""
        array = self._submit("--partition=low", f"--array=1-{TASKS}", "--output=%A_%a.out")
        tasks = [f"{array}_{number}" for number in range(1, TASKS + 1)]
        self.abrupt = self._submit("--partition=low", "--output=%j.out")
        wait_until("all runs log", lambda: len(self.array.records("init")) == RUNS, 240)
        # Its own ID is that of the whole array: what is meant for it must not reach the rest.
        self.told = next(task for task in tasks if self.cluster.job(task)["JobId"] == array)
        self._notice(self.told)
        self.others = [self.cluster.job(task)["JobState"] for task in tasks if task != self.told]
        self.cluster.run("scontrol", "requeue", self.abrupt)
        urgent = self._submit_urgent()
        self.cluster.wait_state(urgent, "RUNNING")
        self.left_during_urgent = self.array.processes()
        self.cluster.wait_state(urgent, "COMPLETED", "FAILED")
        self.urgent_job = self.cluster.job(urgent)
        for job in (*tasks, self.abrupt):
            self.jobs[job] = self.cluster.wait_state(job, "COMPLETED", "FAILED")

    def _submit(self, *options: str) -> str:
        return self.cluster.submit(
            *options, f"--cpus-per-task={CPUS // RUNS}",
            str(SCRIPT), self.array.sweep, "--slots", "1",
            "--set", "sweep.poll_seconds=0.5", "--set", "rescue.backoff_seconds=1",
            env={**self.array.environment(), "COORDINATORD": str(COORDINATORD),
                 "REDIS_URL": self.redis_url, "TMPDIR": str(self.scratch)},
            cwd=self.array.directory,
        )  # fmt: skip

    def _notice(self, task: str) -> None:
        """What SLURM does by itself before the time limit, to one task."""
        self.cluster.run("scancel", "--signal=USR1", "--batch", task)
        self.cluster.wait_state(task, "PENDING")
        job = self.cluster.job(task)
        self.left_after_usr1 = {
            pid: line for pid, line in self.array.processes().items()
            if f"SLURM_JOB_ID={job['JobId']}".encode() in environment_of(pid)
        }  # fmt: skip

    def _submit_urgent(self) -> str:
        """Two tasks for all CPUs of the node, so all that runs has to go."""
        daemon = (f"{COORDINATORD} --rank-gate node --until-done --sweep {self.urgent.sweep}"
                  f" --slots 1 --redis-url off --state-dir {self.scratch / 'urgent'}")  # fmt: skip
        return self.cluster.submit(
            "--partition=high", "--ntasks=2", f"--cpus-per-task={CPUS // 2}",
            "--output=urgent.out", "--wrap", f"srun --label {daemon}",
            env=self.urgent.environment(), cwd=self.urgent.directory,
        )  # fmt: skip

    def output(self, name: str) -> str:
        """What a job printed."""
        return (self.array.directory / f"{name}.out").read_text()


def environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.fixture(scope="module")
def story() -> Iterator[Story]:
    """The whole story, over; skipped where SLURM is not installed or we are not root."""
    if absent := missing():
        pytest.skip(f"no {', '.join(absent)}: apt-get install {' '.join(PACKAGES)}")
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs as their users only when it runs as root")
    with ExitStack() as stack:
        # Short, since sockets lie in it.
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        place = scratch / "slurm"
        place.mkdir(mode=0o755)
        told = stage(stack, scratch, stack.enter_context(running_cluster(place)))
        try:
            told.play()
        except AssertionError as error:
            outs = "\n".join(f"{o}: {o.read_text()[-12000:]}" for o in scratch.glob("n/*.out"))
            raise AssertionError(f"{error}\n{outs}\n{told.cluster.logs()}") from error
        yield told


def stage(stack: ExitStack, scratch: Path, cluster: Cluster) -> Story:
    """Emulator, Redis and two sweeps."""
    emulator = start_emulator(scratch / "emulator", "--racy-window", "8")
    stack.callback(emulator.stop)
    stack.enter_context(shared_redis(scratch))
    config = sweep_config(RUNS, seconds=600.0, resumed_seconds=1.0, on_term="save",
                          save_seconds=0.5)  # fmt: skip
    (scratch / "n").mkdir()
    array = Node("array", emulator, scratch / "n", emulator.create_sweep(config))
    urgent = Node("urgent", emulator, scratch / "n",
                  emulator.create_sweep(sweep_config(1, seconds=0.2)))  # fmt: skip
    stack.callback(array.end)
    stack.callback(urgent.end)
    return Story(cluster, emulator, array, urgent, f"unix://{scratch / 'r.sock'}", scratch)


def test_every_run_is_finished_and_was_never_trained_twice_at_a_time(story: Story) -> None:
    runs = story.emulator.state()["runs"].values()
    assert [run["state"] for run in runs] == ["finished"] * (RUNS + 1)
    assert overlaps(story.array.records()) == []
    ended = [r["run"] for r in story.array.records("end") if r.get("code") == 0]
    assert len(ended) == len(set(ended)) == RUNS + 1


def test_each_job_was_queued_again_once_and_ended_well(story: Story) -> None:
    assert [job["Restarts"] for job in story.jobs.values()] == ["1"] * RUNS
    assert [job["ExitCode"] for job in story.jobs.values()] == ["0:0"] * RUNS


def test_the_task_that_got_usr1_saved_and_left_nothing(story: Story) -> None:
    assert "SIGUSR1: telling the coordinator" in story.output(story.told)
    assert "the coordinator exited with 75" in story.output(story.told)
    assert not story.left_after_usr1


def test_its_notice_does_not_affect_the_other_tasks(story: Story) -> None:
    assert story.others == ["RUNNING"] * (TASKS - 1)


def test_the_tasks_that_were_preempted_saved_and_left_nothing(story: Story) -> None:
    for task in story.jobs.keys() - {story.abrupt, story.told}:
        assert story.output(task).count("SIGUSR1: telling the coordinator") == 1
        assert story.output(task).count("the coordinator exited with 75") == 1
    assert not story.left_during_urgent


def test_each_training_of_the_array_got_its_signal_once_and_saved(story: Story) -> None:
    told = [r["pid"] for r in story.array.records("signal") if r["signal"] == signal.SIGUSR1]
    saved = [r["pid"] for r in story.array.records("saved")]
    assert len(told) == len(set(told)) == TASKS
    assert set(told) <= set(saved)


def test_a_job_whose_every_process_got_sigterm_was_notified_once_and_its_run_continued(
    story: Story,
) -> None:
    output = story.output(story.abrupt)
    assert output.count("SIGTERM: telling the coordinator") == 1
    assert output.count("the coordinator exited with 75") == 1
    assert '"step":"hurry"' not in output


def test_runs_were_resumed_not_restarted(story: Story) -> None:
    begun = [record for record in story.array.records("begin") if record["node"] == "array"]
    assert len({record["run"] for record in begun}) == RUNS
    assert len({record["run"] for record in begun if record["resume"]}) == RUNS


def test_of_the_tasks_that_srun_starts_on_a_node_one_works(story: Story) -> None:
    output = story.output("urgent")
    assert output.count("only task 0 of this node runs (rank_gate = node)") == 1
    assert output.count('"event":"daemon_started"') == 1
    assert story.urgent_job["ExitCode"] == "0:0"


def test_no_process_is_left(story: Story) -> None:
    assert not marked(story.array.mark)
    assert not marked(story.urgent.mark)
