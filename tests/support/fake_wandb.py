"""A package `wandb` of the test's own, where the real one cannot be made to do what is tested.

Owns its files below one directory. Its command line prints what it sees, or does what it is told.
"""

import sys
from pathlib import Path

ENTRY = """
import json, os, sys, time, signal
def cli():
    words = sys.argv[1:]
    if words == ["agent", "--help"]:
        print("Usage: wandb agent --forward-signals"); return
    if words[0] == "exit":
        return int(words[1])
    if words[0] == "kill":
        os.kill(os.getpid(), int(words[1]))
    if words[0] == "sleep":
        open(words[1], "w").close(); time.sleep(600)
    print(json.dumps({
        "argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "sid": os.getsid(0),
        "pid": os.getpid(), "ppid": os.getppid(), "path": sys.path[0], "stdin": sys.stdin.read(),
        "fds": sorted(os.listdir("/proc/self/fd")), "chld": signal.getsignal(signal.SIGCHLD) == 0,
    }))
"""


def fake_wandb(folder: Path, init: str = "", entry: str = ENTRY) -> Path:
    """An environment with a package `wandb`; its command."""
    (folder / "wandb" / "cli").mkdir(parents=True)
    (folder / "wandb" / "__init__.py").write_text(f"__version__ = '9.9'\n{init}\n")
    (folder / "wandb" / "wandb_agent.py").touch()
    (folder / "wandb" / "cli" / "__init__.py").touch()
    (folder / "wandb" / "cli" / "cli.py").write_text(entry)
    script = folder / "wandb.py"
    script.write_text(f"#!{sys.executable}\nfrom wandb.cli.cli import cli\n")
    return script.rename(folder / "command")
