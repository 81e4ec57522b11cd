"""The tutorial tells what really happens, up to a verified run."""

import os
import re
import subprocess
import sys
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
    """A line but for numbers, digests, dates, names of interfaces, and the widths of columns, which
    follow durations."""
    return re.sub(" {2,}", "  ", VARIES.sub("#", line))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_newcomer_gets_to_a_verified_run_as_it_is_told(tmp_path):
    session = "\n".join(re.findall(r"^\$ (.*)", COMMANDS, flags=re.MULTILINE))
    assert SMALLER[0] in session
    session = session.replace(*SMALLER)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", session],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1400,
    )
    assert done.returncode == 0, done.stdout
    forms = {form(line) for line in done.stdout.splitlines()}
    missing = [line for line in TOLD if form(line) not in forms and not LEFT_OUT.match(line)]
    assert missing == [], done.stdout


def test_the_package_is_installed_under_the_name_that_is_told():
    for page in (PAGE, (ROOT / "README.md").read_text()):
        page = page.replace("\\\n", "")
        assert re.search(r"^pip install torch --index-url .*/cpu *(#.*)?\n^pip install \. *(#|$)", page, flags=re.MULTILINE)
    assert 'name = "torch-lockstep"' in (ROOT / "pyproject.toml").read_text()
