"""A real SLURM of one node on loopback: munged, slurmctld and slurmd from the distribution.

Owns their configuration in one directory and their life: they are ended by their process IDs.
Nothing of the machine's own SLURM, should it have one, is read or touched.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.emulator import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
PACKAGES = ("slurm-wlm", "munge")
CPUS = 8
"""What the node claims to have (`config_overrides`): SLURM only counts them here."""

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a job that was queued again has to wait (default: 120 s).
AuthInfo=socket={place}/munge.sock,cred_expire=5
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=60
MailProg=/bin/true
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
# With this, who is preempted gets his --signal when the grace begins, and nobody else's.
SlurmctldParameters=preempt_send_user_signal
PartitionName=low Nodes={host} Default=YES PriorityTier=1 GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=high Nodes={host} PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster; `place` has its configuration and logs."""

    place: Path
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, *words: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
        """Run one of SLURM's commands; what it printed."""
        environ = {"PATH": os.environ["PATH"], **(env or {}), **self.variables}
        done = subprocess.run(
            words, env=environ, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def submit(self, *words: str, env: dict[str, str], cwd: Path) -> str:
        """Submit a job; its ID."""
        return self.run("sbatch", "--parsable", *words, env=env, cwd=cwd).strip()

    def job(self, job: str) -> dict[str, str]:
        """The fields of `scontrol show job`: JobState, Restarts, ExitCode, ..."""
        words = self.run("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_state(self, job: str, *states: str, seconds: float = 240) -> dict[str, str]:
        """Wait until the job is in one of `states`; its fields."""

        def there() -> dict[str, str] | None:
            shown = self.job(job)
            return shown if shown["JobState"] in states else None

        found = wait_until(f"job {job} is {' or '.join(states)}", there, seconds)
        assert found is not None
        return found

    def logs(self) -> str:
        """The ends of the daemons' logs, for the message of a test that failed."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-700:]}"
            for log in sorted(self.place.glob("*.log"))
        )


def missing() -> list[str]:
    """The programs that are not installed."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_cluster(place: Path) -> Iterator[Cluster]:
    """Start the three daemons in `place`; end them in the opposite order."""
    for folder in ("state", "spool"):
        (place / folder).mkdir(mode=0o700)
    conf = place / "slurm.conf"
    conf.write_text(CONF.format(
        place=place, host=socket.gethostname().split(".")[0], cpus=CPUS,
        ctld_port=free_port(), slurmd_port=free_port(),
    ))  # fmt: skip
    key = place / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    cluster = Cluster(place, {"SLURM_CONF": str(conf)})
    with ExitStack() as stack:
        stack.enter_context(daemon(
            place, "munged", "--foreground", "--force", f"--socket={place}/munge.sock",
            f"--key-file={key}", f"--pid-file={place}/munged.pid",
            f"--seed-file={place}/munge.seed",
        ))  # fmt: skip
        wait_until("munged listens", (place / "munge.sock").exists)
        stack.enter_context(daemon(place, "slurmctld", "-D", "-i", "-f", str(conf)))
        stack.enter_context(daemon(place, "slurmd", "-D", "-f", str(conf)))
        wait_until("the node is idle", lambda: is_idle(cluster), 60)
        yield cluster


def is_idle(cluster: Cluster) -> bool:
    """The controller answers and its node can take jobs."""
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], **cluster.variables}, check=False,
    )  # fmt: skip
    return "idle" in done.stdout


@contextmanager
def daemon(place: Path, program: str, *arguments: str) -> Iterator[None]:
    """Run one of the daemons in the foreground of its own session."""
    environ = {"PATH": f"{os.environ['PATH']}:/usr/sbin", "SLURM_CONF": str(place / "slurm.conf")}
    with (place / f"{program}.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
