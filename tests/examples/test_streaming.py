"""A stream gives the same samples and weights on one process and on two, with loader workers and without."""

import hashlib
import re

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def test_one_and_two_processes_read_the_same_and_so_do_workers(told_on_one_and_two, run_here, examples, tmp_path):
    told, run_dir = told_on_one_and_two("streaming.py", "--epochs", "2")
    assert float(re.search(r"accuracy ([\d.]+)%", told[-1])[1]) > 25
    options = ("--nproc-per-node", "2", "--threads", "1", "--device", "cpu", "--run-dir", "workers")
    done = run_here(examples / "streaming.py", *options, args=("--epochs", "2", "--workers", "1"))
    assert done.returncode == 0, done.stderr
    digests = [
        hashlib.sha256(next(iter(sorted(run.glob("checkpoints/step-*/model.safetensors"))[-1:])).read_bytes()).hexdigest()
        for run in (run_dir, tmp_path / "workers")
    ]
    assert digests[0] == digests[1]
