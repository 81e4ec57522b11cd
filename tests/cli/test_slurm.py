"""``lockstep slurm`` where there is no Slurm: the file is written, and what was not looked at is
said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def slurm(tmp_path):
    (tmp_path / "train.py").write_text("")
    programs = tmp_path / "bin"
    programs.mkdir()

    def run(*arguments):
        command = [sys.executable, "-m", "lockstep._cli.main", "slurm", *arguments]
        environ = {**os.environ, "PATH": str(programs)}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100)

    return run


def test_the_file_is_written_and_that_nothing_was_checked_is_said(slurm, tmp_path):
    done = slurm("--nodes", "2", "--gpus-per-node", "4", "--shards", "8", "train.py", "--epochs", "3")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("train.sbatch: 8 processes on 2 nodes")
    assert "train-%j.out" in first
    assert second.endswith(" sbatch train.sbatch")
    assert done.stderr.startswith("lockstep: not checked: ")
    text = (tmp_path / "train.sbatch").read_text()
    assert "#   lockstep slurm --nodes 2 --gpus-per-node 4 --shards 8 train.py --epochs 3\n" in text
    assert f"{sys.executable} train.py --epochs 3\n" in text
    assert """export LOCKSTEP_SETTINGS='{"shards": 8}'\n""" in text
    assert os.access(tmp_path / "train.sbatch", os.X_OK)


def test_a_module_is_no_file(slurm, tmp_path):
    done = slurm("-N", "2", "-m", "--container", "image.sif", "package.train")
    assert done.returncode == 0
    assert "image.sif: " in done.stderr
    assert "    python3 -m package.train\n" in (tmp_path / "train.sbatch").read_text()


def test_processes_and_the_scripts_arguments_are_given_as_to_run_in_a_file_or_not(slurm, tmp_path):
    (tmp_path / "job.toml").write_text("nproc-per-node = 4\nnodes = 3\nshards = 8\n")
    done = slurm("--config", "job.toml", "--nodes", "2", "train.py", "--time", "9", "--seed", "1")
    assert done.stdout.startswith("train.sbatch: 8 processes on 2 nodes")
    text = (tmp_path / "train.sbatch").read_text()
    assert f"{sys.executable} train.py --time 9 --seed 1\n" in text
    assert """export LOCKSTEP_SETTINGS='{"shards": 8}'\n""" in text


def test_another_file_of_that_name_is_kept_and_that_is_said(slurm, tmp_path):
    (tmp_path / "train.sbatch").write_text("mine")
    assert "train.sbatch.old" in slurm("train.py").stderr
    assert Path(tmp_path / "train.sbatch.old").read_text() == "mine"


def test_where_only_singularity_is_it_runs_the_container(slurm, tmp_path):
    (tmp_path / "bin" / "singularity").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "singularity").chmod(0o755)
    assert slurm("--container", "image.sif", "train.py").returncode == 0
    assert "    singularity exec " in (tmp_path / "train.sbatch").read_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nope.py",), "script-missing"),
        (("--submit", "train.py"), "sbatch-missing"),
        (("--strategy", "best", "train.py"), "unknown-name"),
        (("--nproc-per-node", "gpu", "train.py"), "nproc-invalid"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(slurm, refusals, tmp_path, arguments, code):
    done = slurm(*arguments)
    assert (done.returncode, done.stdout, refusals()) == (2, "", [code])
    assert not (tmp_path / "train.sbatch").exists()


def test_help_shows_the_job_the_run_and_examples(slurm):
    told = slurm("--help").stdout
    assert told.index("Job:") < told.index("--cpus-per-task") < told.index("Run (as") < told.index("--shards V")
    assert "  lockstep slurm -N 2 --gpus-per-node 4 -c 12 -t 8:00:00 --submit train.py\n" in told


def test_what_the_script_itself_says_is_read_before_a_file_is_written(slurm, tmp_path):
    (tmp_path / "train.py").write_text("import lockstep\nteam = lockstep.join(shards=6)\n")
    done = slurm("--nodes", "2", "--nproc-per-node", "8", "train.py")
    assert done.returncode == 2
    assert "train.py, line 2" in done.stderr
    assert not (tmp_path / "train.sbatch").exists()
