"""The observer that the page on reports shows works as a separate package."""

import re
import tomllib
from pathlib import Path

import pytest
from warm import run_here

__all__ = ["run_here"]

PAGE = (Path(__file__).parents[2] / "docs" / "report-fields.md").read_text()
BLOCKS = dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A directory that contains the package as pip would install it, on the path of launchers."""
    about = tmp_path / "site" / "lockstep_mounts-1.0.dist-info"
    about.mkdir(parents=True)
    (about.parent / "lockstep_mounts.py").write_text(BLOCKS["lockstep_mounts.py"])
    ((group, points),) = tomllib.loads(BLOCKS["pyproject.toml"])["project"]["entry-points"].items()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lockstep-mounts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        f"[{group}]\n" + "\n".join(f"{name} = {where}" for name, where in points.items())
    )
    monkeypatch.syspath_prepend(about.parent)


@pytest.mark.parametrize(("path", "adds"), [("/data/labels.csv", True), ("/other/labels.csv", False)])
def test_it_adds_its_remark_to_the_failures_that_it_knows(package, run_here, path, adds):
    done = run_here(f"open({path!r})", "--nproc", "2")
    assert done.returncode == 1
    assert f"No such file or directory: '{path}'" in done.stderr
    assert ("Is /data mounted" in done.stderr) == adds
