#!/usr/bin/env python3
"""A training that does nothing but write down what it sees."""

import json
import os
import signal
import sys
from pathlib import Path

ignored = [
    number.name
    for number in signal.Signals
    if number not in {signal.SIGKILL, signal.SIGSTOP} and signal.getsignal(number) is signal.SIG_IGN
]
lines = Path("/proc/self/status").read_text().splitlines()
status = dict(line.split(":", 1) for line in lines if ":" in line)
seen = {
    "argv": sys.argv,
    "env": dict(os.environ),
    "cwd": str(Path.cwd()),
    "stdin": sys.stdin.read(),
    "group_is_own": os.getpgid(0) == os.getpid(),
    "session_is_own": os.getsid(0) == os.getpid(),
    "ignored": ignored,
    "blocked": status["SigBlk"].strip(),
    "ignored_mask": status["SigIgn"].strip(),
    "umask": status.get("Umask", "").strip(),
}
scratch = Path(os.environ["SEEN"] + ".part")
scratch.write_text(json.dumps(seen))
scratch.rename(os.environ["SEEN"])
