"""``lockstep new``: what it writes runs as it says, is never written over another file, and is in the wheel."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)

TEMPLATE = Path(__file__).parents[2] / "src/lockstep/cli/template/train.py"


def new(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "lockstep", "new", *args], cwd=cwd, capture_output=True, text=True, timeout=100
    )


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """The command under its name, as after installation."""
    command = tmp_path / "bin" / "lockstep"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m lockstep "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")


def test_the_first_command_that_it_says_trains_to_nearly_every_sample(on_path, tmp_path):
    told = new("my training", cwd=tmp_path).stdout.splitlines()
    assert told[:2] == ["wrote my training/train.py", "next:"]
    first, verify = (line.strip() for line in told[2:])
    done = subprocess.run(first, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=1250)
    assert done.returncode == 0, done.stderr
    assert "on 2 processes" in done.stdout
    assert float(done.stdout.splitlines()[-1].partition("best ")[2].rstrip("%")) > 95
    assert verify == "cd 'my training' && lockstep verify train.py"


@pytest.mark.long
@pytest.mark.longest
def test_the_second_says_pass(on_path, tmp_path):
    command = new(cwd=tmp_path).stdout.splitlines()[-1].strip()
    smaller = command.replace("verify", "verify --world-sizes 1,2 --launchers local")  # others: test_verify.py
    done = subprocess.run(f"{smaller} --epochs 1", shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=1400)
    assert done.returncode == 0, done.stdout
    assert "\nPASS" in done.stdout


def test_a_file_that_exists_is_left_as_it_is(tmp_path):
    (tmp_path / "train.py").write_text("mine")
    done = new(cwd=tmp_path)
    assert done.returncode == 2
    assert "train.py exists already, so nothing was written. Give another directory: lockstep new my-training" in done.stderr
    assert (tmp_path / "train.py").read_text() == "mine"


def test_a_file_of_any_name_can_be_asked_for(tmp_path):
    done = new("models/spirals.py", cwd=tmp_path)
    assert done.stdout.splitlines()[-1].strip() == "cd models && lockstep verify spirals.py"
    assert "lockstep verify spirals.py" in (tmp_path / "models" / "spirals.py").read_text()


def test_what_runs_write_is_left_out_of_git_unless_there_is_a_gitignore(tmp_path):
    new("fresh", cwd=tmp_path)
    assert "runs/" in (tmp_path / "fresh" / ".gitignore").read_text().splitlines()
    (tmp_path / ".gitignore").write_text("mine\n")
    new(cwd=tmp_path)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_a_file_in_place_of_the_directory_is_told(tmp_path):
    (tmp_path / "file").touch()
    done = new("file", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "file/train.py" in done.stderr


def test_the_script_is_in_the_package_and_names_the_commands_itself():
    assert '"cli/template/train.py"' in (TEMPLATE.parents[4] / "pyproject.toml").read_text()
    said = ast.get_docstring(ast.parse(TEMPLATE.read_text()))
    assert "lockstep run --nproc-per-node 2 train.py" in said
    assert "lockstep verify train.py" in said
