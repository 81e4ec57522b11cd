"""What ``make install`` prints while pip works."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "tools" / "install.py"
STEP = runpy.run_path(str(PROGRAM))["step"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Collecting torch==2.13.0", None),
        ("  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (191.2 MB)", "downloading torch (191 MB)"),
        ("  Downloading https://download.pytorch.org/whl/cpu/torch-2.13.0.whl (191.2 MB)", "downloading torch (191 MB)"),
        ("  Using cached torch-2.13.0-cp311-cp311-linux_x86_64.whl (191.2 MB)", "from the cache: torch (191 MB)"),
        ("  Downloading click-8.1.7-py3-none-any.whl (97 kB)", None),
        ("  Downloading numpy-2.4.6.whl (16.8 MB)", None),
        ("Installing collected packages: a, b, c", "installing 3 packages"),
        ("Successfully installed a-1 b-2 c-3", "installed"),
    ],
)
def test_large_steps_are_shown(line, shown):
    assert STEP(line) == shown


@pytest.fixture
def install(tmp_path):
    """``install(program)``: with a package ``pip`` that is this program."""

    def run(program, quiet_s="10.0"):
        (tmp_path / "pip.py").write_text(program)
        copy = tmp_path / "install.py"
        copy.write_text(PROGRAM.read_text().replace("QUIET_S = 10.0", f"QUIET_S = {quiet_s}"))
        return subprocess.run([sys.executable, copy, "-e", "."], cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return run


def test_a_silent_pip_is_heard_of_and_its_status_is_kept(install):
    done = install("import time; time.sleep(1); print('Installing collected packages: a, b')", quiet_s="0.2")
    assert done.returncode == 0
    first, *waiting, last = [line.split("s  ", 1)[1] for line in done.stdout.splitlines()]
    assert (first, last) == ("choosing versions", "installing 2 packages")
    assert set(waiting) == {"choosing versions ..."}


def test_the_end_of_what_a_failing_pip_prints_is_shown(install):
    done = install("import sys; print('x\\n' * 99 + 'ERROR: No matching distribution found for torch'); sys.exit(3)")
    assert done.returncode == 3
    assert done.stderr.endswith("ERROR: No matching distribution found for torch\n")
    assert done.stderr.count("x\n") < 20
