"""A built wheel is complete and works on its own; the tests themselves run on the source tree."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("hatchling", reason="hatchling is not installed")


def build(kind: str, into: Path) -> Path:
    """Build one distribution with the pinned hatchling; return its file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (file,) = into.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "coordinator"
    files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    wanted = {str(path.relative_to(ROOT)) for path in files}
    assert "coordinator/py.typed" in wanted
    with zipfile.ZipFile(wheel) as content:
        assert {name for name in content.namelist() if name.startswith("coordinator/")} == wanted


def test_the_wheel_has_both_commands_and_the_license(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        (entries,) = [name for name in content.namelist() if name.endswith("entry_points.txt")]
        text = content.read(entries).decode()
        licenses = [name for name in content.namelist() if name.endswith("licenses/LICENSE")]
    assert "coordinatord = " in text
    assert "coordinatorctl = " in text
    assert len(licenses) == 1


def test_an_unpacked_wheel_works_away_from_this_tree(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path / "site")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); "
        "import coordinator, coordinator.config; print(coordinator.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert Path(done.stdout.strip()) == tmp_path / "site" / "coordinator" / "__init__.py"


def test_the_sdist_has_what_building_testing_and_deploying_need(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert names >= {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "deploy/wandb-coordinator.service",
        "requirements/runtime.txt",
        "scripts/test",
        "tests/deploy/test_distribution.py",
    }
