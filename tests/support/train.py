"""A training script for tests: real wandb, begins and ends on record, signals noted.

What it does is set by the sweep's parameters; where it records, by RECORDS in the environment. A
file `release` beside the records ends every training as if its time were over, save a resumed one
that has a time of its own.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import wandb

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=0)
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--resumed-seconds", type=float, default=None)
parser.add_argument("--exit", type=int, default=0)
parser.add_argument("--die", type=int, default=0, help="end by this signal")
parser.add_argument("--mark", type=int, default=0, help="1: mark_preempting() right after init")
parser.add_argument("--on-term", default="none", help="none, save, zero or ignore")
parser.add_argument("--save-seconds", type=float, default=1.5)
parser.add_argument("--close-seconds", type=float, default=0.0, help="after the exit was reported")
parser.add_argument("--children", type=int, default=0)
parser.add_argument("--fill", default="", help="a file that takes all room of its disk, once")
parser.add_argument("--memory-group", default="", help="join this limited control group, exceed it")
options, _ = parser.parse_known_args()
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
    with Path(os.environ["RECORDS"]).open("a") as file:  # one write: appends do not mix
        file.write(json.dumps(line) + "\n")


def note(signum: int, _frame: object) -> None:
    received.append(signum)
    record("signal", signal=signum)


CHILD = """import signal, time
signal.signal(signal.SIGTERM, lambda *_: print('CHILD GOT TERM', flush=True))
time.sleep(600)
"""
children = [subprocess.Popen([sys.executable, "-c", CHILD]).pid for _ in range(options.children)]
record("begin", children=children, resume=os.environ.get("WANDB_RESUME"))
broken = os.environ.get("BROKEN_WHILE")
if broken and Path(broken).exists():  # this node cannot train at all
    time.sleep(0.5)
    record("end", code=1)
    sys.exit(1)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
if options.on_term != "none":
    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)

run = wandb.init()
if options.mark:
    run.mark_preempting()
step = run.step
record("init", step=step)
seconds, shortened = options.seconds, False
if run.resumed and options.resumed_seconds is not None:
    seconds, shortened = options.resumed_seconds, True
if options.fill and not run.resumed:
    with Path(options.fill).open("wb", buffering=0) as filler:
        while filler.write(bytes(1 << 16)):  # raises OSError when nothing is left
            pass
if options.memory_group:
    Path(options.memory_group, "cgroup.procs").write_text("0")
    bytearray(1 << 30)
end = time.monotonic() + seconds
released = Path(os.environ["RECORDS"]).with_name("release")
while time.monotonic() < end and (shortened or not released.exists()):
    step += 1
    run.log({"n": options.n, "step_seen": step})
    time.sleep(0.1)
    if received and options.on_term in {"save", "zero"}:
        if options.on_term == "save":
            run.mark_preempting()
        time.sleep(options.save_seconds)
        record("saved", signals=received)
        code = 143 if options.on_term == "save" else 0
        run.finish(exit_code=code)
        time.sleep(options.close_seconds)
        record("end", code=code)
        os._exit(code)
if options.die:
    record("end", signal=options.die)
    os.kill(os.getpid(), options.die)
if options.exit:
    run.finish(exit_code=options.exit)
else:
    run.finish()
record("end", code=options.exit)
sys.exit(options.exit)
