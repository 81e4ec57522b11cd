"""The tutorial, from an installed wheel to a verified run, tells what really happens."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = "\n".join(re.findall(r"```console tutorial\n(.*?)```", PAGE, flags=re.DOTALL))
TOLD = [line for block in re.findall(r"```text tutorial\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
# Fewer settings, and the lines that then are missing: tests/cli/test_verify.py runs them all.
SMALLER = ("verify --world-sizes 1,2", "verify --world-sizes 1,2 --launchers local --no-resume --no-one-device")
LEFT_OUT = re.compile(r"\[[34567]/7\]")
VARIES = re.compile(r"[0-9a-f]{16,}|\d[\d:.,-]*( \d\d:\d\d:\d\d)?|on \w+\b(?=, run)")


def form(line):
    """A line but for numbers, digests, dates, names of interfaces, and the widths of columns, which follow durations."""
    return re.sub(" {2,}", "  ", VARIES.sub("#", line))


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory):
    """Of a clean environment with the wheel, which borrows this one's packages: those are not downloaded here."""
    place = tmp_path_factory.mktemp("installed")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src" / "lockstep", source / "src" / "lockstep", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(place), str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    venv.create(place / "env", with_pip=False, symlinks=True)
    (packages,) = (place / "env").glob("lib/python*/site-packages")
    Path(packages, "borrowed.pth").write_text(sysconfig.get_path("purelib"))  # without its editable lockstep
    (wheel,) = place.glob("*.whl")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        place / "env",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    return place / "env" / "bin"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_newcomer_gets_from_the_wheel_to_a_verified_run_as_it_is_told(bin_dir, tmp_path):
    session = "\n".join(re.findall(r"^\$ (.*)", COMMANDS, flags=re.MULTILINE))
    assert SMALLER[0] in session
    session = session.replace(*SMALLER)
    path = f"{bin_dir}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", f"{session}\npython -c 'import lockstep; print(lockstep.__file__)'"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, done.stdout
    assert str(bin_dir.parent) in done.stdout.splitlines()[-1]
    forms = {form(line) for line in done.stdout.splitlines()}
    missing = [line for line in TOLD if form(line) not in forms and not LEFT_OUT.match(line)]
    assert missing == [], done.stdout


def test_the_package_is_installed_under_the_name_that_is_told():
    for page in (PAGE, (ROOT / "README.md").read_text()):
        assert re.search(r"^pip install torch --index-url .*/cpu .*\n^pip install \. *(#|$)", page, flags=re.MULTILINE)
    assert 'name = "torch-lockstep"' in (ROOT / "pyproject.toml").read_text()
