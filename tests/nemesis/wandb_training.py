"""A training of the long form: real wandb, and a record of its own as `training.py` keeps it.

What it does is set by the sweep's parameters; RECORDS, NODE and COORDINATOR_RUN_FENCE come from the
environment. A file `release` beside the records ends it soon. Every other run marks itself as
preemptible at its start, so that W&B hands it out again when it falls silent.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=0)
parser.add_argument("--seconds", type=float, default=30.0)
options, _ = parser.parse_known_args()
BEAT_SECONDS = 0.02
records = Path(os.environ["RECORDS"])
asked: list[int] = []
state = "alive"
began = time.monotonic_ns()
head = json.dumps(
    {
        "run": os.environ["WANDB_RUN_ID"],
        "node": os.environ["NODE"],
        "fence": int(os.environ.get("COORDINATOR_RUN_FENCE", "0")),
        "pid": os.getpid(),
        "began": began,
    }
).encode()
path = records / f"{os.environ['WANDB_RUN_ID']}.{os.getpid()}"
file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def last_word(state: str) -> bytes:
    """The second line of the record."""
    return b"%020d %-10s\n" % (time.monotonic_ns(), state.encode())


def beat() -> None:
    """Keep the record as long as the process lives."""
    while True:
        os.pwrite(file, last_word(state), len(head) + 1)
        time.sleep(BEAT_SECONDS)


os.write(file, head + b"\n" + last_word("alive"))
threading.Thread(target=beat, daemon=True).start()
signal.signal(signal.SIGTERM, lambda signum, _frame: asked.append(signum))

import wandb  # noqa: E402 - it takes seconds, in which the process is there already

run = wandb.init()
if options.n % 2:
    run.mark_preempting()
step = run.step
end = time.monotonic() + options.seconds * (0.3 if run.resumed else 1.0) * (0.5 + options.n % 3 / 2)
while time.monotonic() < end and not asked and not records.with_name("release").exists():
    step += 1
    run.log({"n": options.n, "step_seen": step})
    time.sleep(0.5)
state = "preempted" if asked else "finished"  # from here on it tells W&B of its end
if asked:
    run.mark_preempting()
    run.finish(exit_code=143)
    time.sleep(options.n % 3 / 2)  # W&B knows, but it is not gone yet
    sys.exit(143)
run.finish()
