"""Where the daemon and coordinatorctl look for the state directory."""

import pytest

from coordinator.state_dir import default_socket, default_state_dir


@pytest.mark.parametrize(
    ("environ", "uid", "expected"),
    [
        ({"COORDINATOR_STATE_DIR": "/a", "STATE_DIRECTORY": "/b"}, 0, "/a"),
        ({"STATE_DIRECTORY": "/b:/c", "XDG_STATE_HOME": "/x"}, 1000, "/b"),
        ({}, 0, "/var/lib/wandb-coordinator"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, 0, "/var/lib/wandb-coordinator"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, 1000, "/x/wandb-coordinator"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, 1000, "/h/.local/state/wandb-coordinator"),
        ({"HOME": "/h", "COORDINATOR_STATE_DIR": ""}, 1000, "/h/.local/state/wandb-coordinator"),
    ],
)
def test_the_first_rule_that_applies_decides(
    environ: dict[str, str], uid: int, expected: str
) -> None:
    assert default_state_dir(environ, uid) == expected
    assert default_socket(environ, uid) == f"{expected}/control.sock"


def test_a_configured_socket_overrides_the_state_directory() -> None:
    environ = {"COORDINATOR_SOCKET": "/s", "COORDINATOR_STATE_DIR": "/a"}
    assert default_socket(environ) == "/s"
