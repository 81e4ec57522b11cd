"""Ranks with a process group compare what they read; loops under DDP that are killed go on on other
numbers of processes."""

import json
import signal
from collections import Counter

import pytest

pytestmark = pytest.mark.timeout(120)

DIFFER = """
import random

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import lockstep

dist.init_process_group("gloo")
rank = dist.get_rank()
data = TensorDataset(torch.arange(30))


class Split(IterableDataset):
    def __iter__(self):
        return iter(range(rank, 30, 2))


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.rand(3)


def unchanged(loader):
    pass


def load_on_one(loader):
    other = lockstep.resumable(DataLoader(data, 4, shuffle=True), compare=False)
    next(iter(other))
    if rank == 0:
        loader.load_state_dict(other.state_dict())


def tell_one(loader):
    loader.set_epoch(rank)


CASES = {
    "equal": (data, 0, unchanged),
    "drawn at random": (Noisy(), 0, unchanged),
    "loaded on one": (data, 0, load_on_one),
    "a stream that splits itself": (Split(), 0, unchanged),
    "another split at random": (Subset(data, random.Random(rank).sample(range(30), 20)), 0, unchanged),
    "another order of files": (TensorDataset(torch.arange(30) if rank else torch.arange(30).flip(0)), 0, unchanged),
    "another length": (TensorDataset(torch.arange(30 + rank)), 0, unchanged),
    "another seed": (data, rank, unchanged),
    "told on one": (data, 0, tell_one),
    "not compared": (Split(), 0, None),
}
for name, (data, seed, do) in CASES.items():
    shuffle = not isinstance(data, IterableDataset)
    loader = lockstep.resumable(DataLoader(data, 4, shuffle=shuffle), seed=seed, compare=do is not None)
    if do is not None:
        do(loader)
    try:
        next(iter(loader))
        said = "read"
    except lockstep.MismatchError:
        said = "refused"
    dist.barrier()
    if rank == 1:
        print(name, said, sep=": ")
dist.destroy_process_group()
"""


def test_ranks_whose_loaders_differ_are_refused(run_here):
    done = run_here(DIFFER, "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ") for line in done.stdout.splitlines() if ": " in line)
    assert {name for name, what in said.items() if what == "read"} == {"equal", "drawn at random", "not compared"}, said
    assert len(said) == 10


def test_a_place_that_is_not_that_of_the_group_is_refused(run_here):
    source = """
        import os
        import torch.distributed as dist
        from torch.utils.data import DataLoader
        import lockstep
        from lockstep._world.environment import VARIABLES

        rank = int(os.environ["RANK"])
        for name in VARIABLES:
            os.environ.pop(name, None)  # as where the script starts its processes
        early = lockstep.resumable(DataLoader(range(30), 4))
        dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
        late = lockstep.resumable(DataLoader(range(30), 4))
        assert next(iter(late)).tolist() == [2 * rank, 2 * rank + 1]
        for make in (lambda: next(iter(early)), lambda: lockstep.resumable(DataLoader(range(30), 4), rank=0, world_size=1)):
            try:
                make()
            except lockstep.ConfigError:
                print("refused")
        dist.destroy_process_group()
    """
    done = run_here(source, "--nproc-per-node", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 4, done.stdout


def test_a_script_that_ends_within_a_pass_ends_silently(run_here):
    source = """
        from torch.utils.data import DataLoader
        import lockstep

        loader = lockstep.resumable(DataLoader(range(30), 4, shuffle=True))
        batches = iter(loader)
        next(batches)
    """
    done = run_here(source)
    assert (done.returncode, done.stderr) == (0, "")


TRAIN = """
import json, os, signal, sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import lockstep

launch, stop, workers = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.arange(120), torch.randn(120, 4))
loader = lockstep.resumable(DataLoader(data, 12, shuffle=True, num_workers=workers), seed=3)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
path, step = Path("checkpoint.pt"), 0
if path.exists():
    state = torch.load(path, weights_only=True)
    model.module.load_state_dict(state["model"])
    loader.load_state_dict(state["loader"])
    step = state["step"]
notes = Path(f"notes-{launch}-{dist.get_rank()}").open("w")
for epoch in range(loader.epoch, 2):
    for numbers, x in loader:
        (model(x).square().mean() * loader.weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        print(json.dumps([epoch, step, numbers.tolist()]), file=notes, flush=True)
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "loader": loader.state_dict(), "step": step}, "new.pt")
            os.replace("new.pt", path)
        dist.barrier()
        if step == stop:
            os.kill(os.getpid(), signal.SIGKILL)
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
"""


def train(run_here, tmp_path, launches):
    """Train on ``[(processes, workers, step to be killed behind)]``, one after another. Returns the
    weights, and what was used in the epochs."""
    import torch

    for number, (nproc, workers, stop) in enumerate(launches):
        done = run_here(TRAIN, "--nproc-per-node", str(nproc), args=(number, stop, workers))
        assert (done.returncode == 0) == (stop == 0), done.stderr
        assert not stop or signal.SIGKILL.name in done.stderr, done.stderr
    lines = [json.loads(line) for file in tmp_path.glob("notes-*") for line in file.read_text().splitlines()]
    assert {step for _, step, _ in lines} == set(range(1, 21))
    for file in (*tmp_path.glob("notes-*"), tmp_path / "checkpoint.pt"):
        file.unlink()
    return torch.load(tmp_path / "model.pt"), [
        Counter(number for epoch, _, used in lines for number in used if epoch == wanted) for wanted in range(2)
    ]


def test_killed_and_resumed_on_any_numbers_of_processes_each_epoch_has_each_sample_once(run_here, tmp_path):
    """120 samples, 12 a step: killed within epochs, at the end of one, and at the end of all."""
    import torch

    expected, _ = train(run_here, tmp_path, [(1, 0, 0)])
    launches = [(2, 2, 4), (2, 0, 7), (3, 0, 10), (1, 2, 13), (4, 0, 20), (2, 0, 0)]
    weights, used = train(run_here, tmp_path, launches)
    assert used == [Counter(range(120))] * 2
    for name in expected:
        torch.testing.assert_close(weights[name], expected[name])
