"""The tests that the page on testing shows, in a project of their own: they end as it says, with
the output that it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.timeout(100), pytest.mark.long]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "testing.md").read_text()
FILES = dict(re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```', PAGE, flags=re.DOTALL | re.MULTILINE))
COMMANDS = re.findall(r"^\$ (.*)", PAGE, flags=re.MULTILINE)
[SHOWN] = re.findall(r'^```text title="output"\n(.*?)^```', PAGE, flags=re.DOTALL | re.MULTILINE)
VARIES = r"\d+\.\d+(e-\d+)?|lockstep-test-\w+|on \w+|in #s"


def settled(text):
    """Without what another machine has: numbers that were computed, times, names."""
    return [re.sub(VARIES, "#", line.rstrip()).strip("=_ ") for line in text.splitlines() if line.strip()]


@pytest.fixture
def run(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)

    def command(words):
        python, *args = words.split()
        assert python == "python"
        outer = (
            "PYTEST_ADDOPTS",
            "PYTEST_XDIST",
            "COLUMNS",
            "CI",
            "BUILD_NUMBER",
        )  # With the last two pytest does not cut its lines.
        environ = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
        environ |= {"OMP_NUM_THREADS": "1", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
        return subprocess.run(
            [sys.executable, *args], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=450, check=False
        )

    return command


def test_the_tests_of_the_page_pass_and_fail_as_it_says(run, tmp_path):
    passing, failing = COMMANDS
    done = run(passing)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "4 passed" in done.stdout
    done = run(failing)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stderr
    assert settled(done.stdout) == settled(SHOWN)
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {*FILES}, "something was written beside the tests"
