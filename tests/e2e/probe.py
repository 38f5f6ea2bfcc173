#!/usr/bin/env python3
"""A training that does nothing but write down what it sees."""

import json
import os
import signal
import sys

ignored = [
    number.name
    for number in signal.Signals
    if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) is signal.SIG_IGN
]
status = dict(
    line.split(":", 1) for line in open("/proc/self/status").read().splitlines() if ":" in line
)
seen = {
    "argv": sys.argv,
    "env": dict(os.environ),
    "cwd": os.getcwd(),
    "stdin": sys.stdin.read(),
    "group_is_own": os.getpgid(0) == os.getpid(),
    "session_is_own": os.getsid(0) == os.getpid(),
    "ignored": ignored,
    "blocked": status["SigBlk"].strip(),
    "ignored_mask": status["SigIgn"].strip(),
    "descriptors": sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd < 3),
    "umask": status.get("Umask", "").strip(),
}
scratch = os.environ["SEEN"] + ".part"
with open(scratch, "w") as file:
    json.dump(seen, file)
os.replace(scratch, os.environ["SEEN"])
