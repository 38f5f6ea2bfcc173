"""The check for dead links finds them and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_links.py"


def check(tree: Path) -> tuple[int, list[str]]:
    """Run the real script on `tree`; return its exit code and complaints."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tree)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[a](missing.md)", "a.md:1: missing.md: no such file"),
        ("one\n\n[a\nb](missing.md)", "a.md:4: missing.md: no such file"),
        ("[a](b.md#nowhere)", "a.md:1: b.md#nowhere: no such heading"),
        ("[a](#nowhere)", "a.md:1: #nowhere: no such heading"),
        ("# One\n[a](#one-1)", "a.md:2: #one-1: no such heading"),
        ("[a](../b.md)", "a.md:1: ../b.md: leads out of this tree"),
        ("![a](missing.png)", "a.md:1: missing.png: no such file"),
        ("[a]: missing.md", "a.md:1: missing.md: no such file"),
        ("[`code`](missing.md)", "a.md:1: missing.md: no such file"),
        ("```\n# A\n```\n[a](#a)", "a.md:4: #a: no such heading"),
    ],
)
def test_a_dead_link_is_named_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "b.md").write_text("# There\n")
    (tmp_path / "a.md").write_text(text)
    assert check(tmp_path) == (1, [complaint])


@pytest.mark.parametrize(
    "text",
    [
        "[a](b.md) [b](b.md#there) [c](sub/) [d](https://example.invalid/gone)",
        "# It's `here`, now\n[a](#its-here-now)",
        "# Twice\n# Twice\n[a](#twice-1)",
        "```sh\n[a](missing.md)\n```\nand `[a](missing.md)`",
    ],
)
def test_a_good_link_passes(tmp_path: Path, text: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.md").write_text("# There\n")
    (tmp_path / "a.md").write_text(text)
    assert check(tmp_path) == (0, [])
