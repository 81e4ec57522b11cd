"""One number of threads in a run, for PyTorch, NumPy and OpenMP: whoever started it, and as it was
born."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

# Each product has other bits with one thread than with two.
TRAIN = """
import hashlib, json, sys
import lockstep, numpy as np, torch
from threadpoolctl import threadpool_info
from torch.utils.data import DataLoader, Dataset

def product(seed):
    random = np.random.default_rng(seed)
    return random.standard_normal((301, 407)) @ random.standard_normal((407, 211))

def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]

def numbers():
    return {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}

class Products(Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, index):
        assert numbers() == {1}, numbers()
        return torch.from_numpy(product(index)), index

team = lockstep.join(shards=3, fresh=True)
data = DataLoader(Products(), batch_size=3, num_workers=int(sys.argv[1]))
model, loader = team.prepare(torch.nn.Linear(211, 1).double(), data)
found = []
for batch in loader:
    for inputs, (index,) in batch.shards:
        assert numbers() == {team.config.threads}, numbers()
        found.append((int(index), digest(inputs[0].numpy()), digest(product(int(index)))))
        team.backward(model(inputs).mean())
every = sorted(one for found in team.all_gather_object(found) for one in found)
team.print("found", json.dumps(every))
"""
# What says its number of threads, and no more.
JOIN = """
import lockstep, torch
team = lockstep.join(shards=2, run_dir="run")
model, loader = team.prepare(torch.nn.Linear(1, 1), torch.utils.data.DataLoader(torch.ones(4, 1), 2))
for batch in loader:
    for inputs in batch.shards:
        team.backward(model(inputs).mean())
"""
RUN = ("-m", "lockstep._cli.main", "run", "--nproc-per-node")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.fixture
def start(tmp_path, python_here, monkeypatch):
    """``start(source, *command, args=(), **variables)``: its output, with no number of threads in
    the environment but these.

    Without a command, by python, from a process that has loaded PyTorch (with the number of threads
    that the variable says)."""
    for name in [name for name in os.environ if name.endswith("_NUM_THREADS")]:
        monkeypatch.delenv(name)

    def run(source, *command, args=(), **variables):
        (tmp_path / "script.py").write_text(source)
        environ = {"LOCKSTEP_SETTINGS": json.dumps({"device": "cpu", "progress": "plain"}), **variables}
        if command:
            options = {"cwd": tmp_path, "env": {**os.environ, **environ}, "capture_output": True, "text": True}
            done = subprocess.run(
                [sys.executable, *command, "script.py", *args], timeout=100, stdin=subprocess.DEVNULL, **options
            )
        else:
            done = python_here("script.py", *args, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def words(number):
    return f", {number} thread{'' if number == 1 else 's'} each, "


@pytest.mark.long
def test_products_of_numpy_have_the_same_bits_at_every_world_size(start):
    # without the first, each of three processes would have 3
    given = {"OMP_NUM_THREADS": "2", "LOCKSTEP_CORES": "10"}
    found = []
    for command, workers in (((), "2"), ((*RUN, "3"), "0")):
        out = start(TRAIN, *command, args=[workers], **given)
        assert words(2) in out
        found.append(json.loads(out.partition("found ")[2]))
    assert [index for index, *_ in found[0]] == [*range(6)]
    assert all(sample != computed for _, sample, computed in found[0]), "else this shows nothing"
    assert found[0] == found[1]


@pytest.mark.long
def test_the_number_1_that_the_user_gives_openmp_is_the_runs(start):
    assert words(1) in start(JOIN, OMP_NUM_THREADS="1", LOCKSTEP_CORES="10")


@pytest.mark.longest
def test_the_number_that_torchrun_gives_openmp_by_itself_is_not(start):
    assert words(5) in start(JOIN, *TORCHRUN, "2", LOCKSTEP_CORES="10")


@pytest.mark.long
def test_a_run_keeps_the_number_that_it_was_born_with(start):
    assert words(2) in start(JOIN, OMP_NUM_THREADS="2")
    assert words(2) in start(JOIN, OMP_NUM_THREADS="1")
    assert words(1) in start(JOIN, LOCKSTEP_SETTINGS=json.dumps({"threads": 1, "allow": ["threads"]}), OMP_NUM_THREADS="3")
