"""The default path of the state directory.

Owns that rule for the daemon and coordinatorctl, which must find the same socket. It must import
nothing heavy and create nothing.
"""

import os
from collections.abc import Mapping
from os.path import expanduser, isabs, join

# Strings, because coordinatorctl loads this and pathlib would take longer than all of it.
SYSTEM_STATE_DIR = "/var/lib/wandb-coordinator"
"""For root; the same directory as systemd's `StateDirectory=wandb-coordinator`."""
CONTROL_SOCKET = "control.sock"
"""Name of the control socket in the state directory."""


def default_state_dir(environ: Mapping[str, str], uid: int | None = None) -> str:
    """The state directory of user `uid` (default: the user of this process).

    $COORDINATOR_STATE_DIR; else $STATE_DIRECTORY (systemd.exec(5): the first of a colon-separated
    list); else /var/lib/wandb-coordinator for root; else wandb-coordinator below $XDG_STATE_HOME
    (XDG base directories 0.8: a relative one is ignored) or ~/.local/state.
    """
    if chosen := environ.get("COORDINATOR_STATE_DIR"):
        return chosen
    if given := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return given
    if (os.geteuid() if uid is None else uid) == 0:
        return SYSTEM_STATE_DIR
    state_home = environ.get("XDG_STATE_HOME", "")
    if not isabs(state_home):
        state_home = join(environ.get("HOME") or expanduser("~"), ".local", "state")
    return join(state_home, "wandb-coordinator")


def default_socket(environ: Mapping[str, str], uid: int | None = None) -> str:
    """$COORDINATOR_SOCKET or $COORDINATOR_CONTROL_SOCKET, else in the state directory."""
    chosen = environ.get("COORDINATOR_SOCKET") or environ.get("COORDINATOR_CONTROL_SOCKET")
    return chosen or join(default_state_dir(environ, uid), CONTROL_SOCKET)
