"""What the tests of Horovod run in several processes. As a script: python horovod_scripts.py FOLDER
trains and saves."""

import os
import sys
import threading
import time
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def train(folder):
    """A small training whose last step has a sample for one process only. The state at its end,
    which rank 0 also saves."""
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.1), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(33, 6, generator=generator), torch.arange(33) % 3)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 8, shuffle=True))
    for _ in team.epochs(2):
        for batch in loader:
            for inputs, targets in batch.shards:
                team.backward(functional.cross_entropy(model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    state = dict(model.state_dict())
    if team.is_main:
        torch.save(
            {"state": state, "strategy": team.config.strategy, "launcher": team.world.launcher}, Path(folder, "end.pt")
        )
    return state


def look_around():
    """The variables that starting Horovod leaves, who it thinks this is, and the addresses listened
    on meanwhile."""
    process, done, listening = psutil.Process(), threading.Event(), set()

    def watch():
        while not done.is_set():
            listening.update(s.laddr.ip for s in process.net_connections("inet") if s.status == psutil.CONN_LISTEN)
            done.wait(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    lockstep.join(strategy="horovod").close()
    done.set()
    watcher.join()
    horovod = sys.modules["horovod.torch"]
    place = (horovod.rank(), horovod.size(), horovod.local_rank(), horovod.local_size())
    return sorted(name for name in os.environ if name.startswith("HOROVOD")), place, listening


def join_twice():
    """Two runs in one process, both with Horovod."""
    results = []
    for seed in (0, 0, 1):
        with lockstep.join(strategy="horovod", seed=seed) as team:
            model = nn.Linear(2, 2)
            model, loader = team.prepare(model, DataLoader(TensorDataset(torch.ones(4, 2)), 4))
            for batch in loader:
                for (inputs,) in batch.shards:
                    team.backward(model(inputs).sum(), reduction="sum")
            results.append((model.weight.tolist(), model.weight.grad.tolist()))
    return results


def stay_away():
    """Rank 1 never comes to the end of its second backward pass, in which rank 0 waits for its
    gradients."""
    team = lockstep.join(strategy="horovod", timeout_s=3)
    model = nn.Linear(2, 2)
    model, loader = team.prepare(model, DataLoader(TensorDataset(torch.ones(8, 2)), 4))
    for batch in loader:
        for (inputs,) in batch.shards:
            outputs = model(inputs)
            if team.rank == 1 and team.step == 2:
                outputs.register_hook(lambda gradient: time.sleep(60))
            team.backward(outputs.sum(), reduction="sum")


def reentrant():
    """A weight used inside and outside of a reentrant checkpoint."""
    from torch.utils.checkpoint import checkpoint

    team = lockstep.join(strategy="horovod")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            x = self.inner(x)
            return self.inner(checkpoint(self.inner, x, use_reentrant=True))

    model, loader = team.prepare(Model(), DataLoader(TensorDataset(torch.ones(8, 2)), 4))
    for batch in loader:
        for (inputs,) in batch.shards:
            team.backward(model(inputs).sum(), reduction="sum")


if __name__ == "__main__":
    train(sys.argv[1])
