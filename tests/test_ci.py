"""``.ci/run``: its jobs, and the order in which they run."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Prints what make is asked for, and fails for what FAILS names.
MAKE = """#!/bin/sh
echo "make $1"
[ "$1" != "$FAILS" ]
"""


@pytest.fixture
def run_ci(tmp_path):
    """``run_ci(job, fails)``: the status, and make's targets in order. It installs nothing."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").symlink_to(ROOT / ".ci" / "run")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("make", "mpirun", "ip", "ps", "munged", "slurmctld", "chromium", "valgrind"):
        (programs / name).write_text(MAKE)
        (programs / name).chmod(0o755)

    def run(*job, fails=""):
        env = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "FAILS": fails}
        done = subprocess.run(
            [tmp_path / ".ci" / "run", *job], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
        return done.returncode, [line.removeprefix("make ") for line in done.stdout.splitlines() if line.startswith("make ")]

    return run


@pytest.mark.parametrize(
    ("job", "targets"),
    [
        ("check", ["install", "check", "wheel"]),
        ("test", ["install", "horovod", "test-all", "lowest"]),
        ("simulated", ["install", "simulated"]),
        ("mutants", ["install", "mutants"]),
    ],
)
def test_a_job_runs_what_it_needs(run_ci, job, targets):
    assert run_ci(job) == (0, targets)


def test_all_jobs_run_in_order_without_an_argument(run_ci):
    status, targets = run_ci()
    assert status == 0
    in_order = ["install", "check", "wheel", "test-all", "lowest", "simulated", "mutants"]
    assert [target for target in targets if target != "horovod"] == in_order
    assert targets.index("horovod") < targets.index("test-all")


@pytest.mark.parametrize(
    ("fails", "last"), [(name, name) for name in ("install", "check", "lowest", "simulated", "mutants")]
)
def test_nothing_runs_after_a_failure(run_ci, fails, last):
    status, targets = run_ci(fails=fails)
    assert status != 0
    assert [target for target in targets if target != "horovod"][-1] == last


def test_an_unknown_job_is_refused(run_ci):
    assert run_ci("tests") == (2, [])
