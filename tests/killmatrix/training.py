"""The training of the kill matrix: real wandb, and it stops at each phase that a file names.

A file `hold-PHASE` beside the records holds every training at that phase until it is gone. So a
phase lasts as long as the play needs it, and only then.
"""

import argparse
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import wandb

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=0)
parser.add_argument("--fails", type=int, default=-1, help="the run with this n exits with 3")
options, _ = parser.parse_known_args()
records = Path(os.environ["RECORDS"])
received: list[int] = []


def record(what: str, **more: object) -> None:
    line = {
        "what": what,
        "at": time.monotonic(),
        "run": os.environ.get("WANDB_RUN_ID"),
        "pid": os.getpid(),
        "node": os.environ.get("NODE"),
        **more,
    }
    with records.open("a") as file:  # one write: appends do not mix
        file.write(json.dumps(line) + "\n")


def hold(phase: str) -> None:
    gate = records.with_name(f"hold-{phase}")
    if gate.exists():
        record("hold", phase=phase)
    while gate.exists():
        record("alive")
        time.sleep(0.05)


def note(signum: int, _frame: object) -> None:
    received.append(signum)
    record("signal", signal=signum)


record("begin")
signal.signal(signal.SIGTERM, note)
hold("before_init")
run = wandb.init()
record("init", step=run.step)
gate = records.with_name("hold-training")
step, rows = run.step, 0
while not received and (gate.exists() or rows < 3):
    step, rows = step + 1, rows + 1
    run.log({"n": options.n, "step_seen": step})
    if rows == 3:
        record("hold", phase="training")
    record("alive")
    time.sleep(0.05)
code = 3 if options.n == options.fails else 0
if received:
    if not code:  # W&B would queue a marked run again for ever, if it fails each time
        run.mark_preempting()
    hold("saving")
    code = code or 143
run.finish(exit_code=code)
hold("finishing")
if (gate := records.with_name("hold-exiting")).exists():  # a process that outlives its main one
    subprocess.Popen(["/bin/sh", "-c", 'while [ -e "$0" ]; do sleep 0.05; done', str(gate)])
record("end", code=code)
os._exit(code)
