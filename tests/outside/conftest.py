"""Ways to start scripts that know nothing of lockstep: under ``lockstep run``, torchrun, and
python.

Those with a DistributedDataParallel wait half a second before they close their group. Gloo's thread
may then still be busy with the last collective, for which it needs the interpreter; and the group's
destructor holds the interpreter and waits for that thread: once in some dozen runs, on a busy
machine, PyTorch hangs there, or aborts, under any launcher and under none."""

import os
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from launchers import nursery, start_cold, start_launcher
from warm import run_here

__all__ = ["nursery", "run_here", "start_cold", "start_launcher"]

SCRIPTS = Path(__file__).parent / "scripts"
# Under python -u and its like, print() writes a line and its end apart, and the lines of ranks
# would tear. And torchrun says one thread, where plain python takes all cores: sums would differ in
# their last bits.
ENVIRONMENT = {"PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def here(tmp_path):
    """A directory with the scripts in it, where all is started."""
    shutil.copytree(SCRIPTS, tmp_path, dirs_exist_ok=True)
    return tmp_path


def lines_by(start):
    """``lockstep_run``, by one of the ways to run a script."""

    def run(*command, stdin=None, env=None, status=0):
        options, target, args = split(command)
        done = start(Path(target), *options, args=args, stdin=stdin, env={**ENVIRONMENT, **(env or {})})
        assert done.returncode == status, done.stdout + done.stderr
        return sorted(done.stdout.splitlines()) if status == 0 else done.stderr

    return run


@pytest.fixture
def lockstep_run(run_here, here):
    """``lockstep_run("--nproc", "2", "spmd.py", ...)``: the sorted lines of its output."""
    return lines_by(run_here)


@pytest.fixture
def cold_run(start_cold, here):
    """The same by a launcher in a process of its own: nothing is loaded there, or in its fork
    server, but what always is."""

    def run(script, *options, stdin, **more):
        process = start_cold(script, *options, **more)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(script, process.returncode, out, err)

    return lines_by(run)


@pytest.fixture
def start(here):
    """``start("-m", "torch.distributed.run", ...)``: python with these arguments, to its end; its
    sorted lines."""

    def run(*command, stdin=None, env=None):
        variables = {**os.environ, **ENVIRONMENT, **(env or {})}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=here,
            env=variables,
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(done.stdout.splitlines())

    return run


@pytest.fixture
def torchrun(start, here):
    """``torchrun("--nproc-per-node", "2", "spmd.py", ...)``: the sorted lines of what the processes
    wrote."""

    def run(*command, module="torch.distributed.run", **options):
        logs = here / "torchrun-logs"
        shutil.rmtree(logs, ignore_errors=True)
        start("-m", module, "--log-dir", str(logs), "-r", "3", *command, **options)
        return sorted(line for log in logs.glob("*/attempt_*/*/stdout.log") for line in log.read_text().splitlines())

    return run


@pytest.fixture
def start_launch(start_launcher, here):
    """``start_launch("--nproc", "2", "saver.py", ...)``: ``lockstep run``, started and not waited
    for."""
    return partial(start_launcher, env=ENVIRONMENT)


@pytest.fixture
def free_port():
    """A port that nobody has just now."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return holder.getsockname()[1]


def split(command):
    """Options of ``lockstep run``, what it runs, and arguments of that."""
    place = next(i for i, word in enumerate(command) if word.endswith(".py") or command[i - 1] in ("-m", "--no-python"))
    return command[:place], command[place], command[place + 1 :]
