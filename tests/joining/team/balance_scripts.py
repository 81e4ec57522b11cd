"""A training in which one rank is slow, until shards have moved away from it."""

import hashlib
import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep

NUM_EPOCHS = 20
STEPS_AFTER_A_MOVE = 3


def train(slowness, num_epochs, stops=False):
    """The weights' digest after each step, and the shards of this rank in it.

    Args:
        slowness: rank 1 sleeps so many times as long as it has computed, after each shard: more on
            a busy machine.
        num_epochs: of four steps each.
        stops: whether the run is asked to stop some steps after shards have moved; else it goes on
            to the end.
    """
    team = lockstep.join()
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(79, 6, generator=generator), torch.arange(79) % 3)
    carried = team.per_shard("number of steps", 0)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 20, shuffle=True))
    seen, since = {}, 0
    try:
        for _ in team.epochs(num_epochs):
            for batch in loader:
                sizes = []
                began_s = time.perf_counter()
                for inputs, targets in batch.shards:
                    team.backward(functional.cross_entropy(model(inputs), targets))
                    carried.value += 1
                    assert carried.value == team.step, "what a shard carries has not moved with it"
                    sizes.append(len(inputs))
                    if slowness and team.rank == 1:
                        time.sleep(0.03 + slowness * (time.perf_counter() - began_s))
                    began_s = time.perf_counter()
                optimizer.step()
                optimizer.zero_grad()
                weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
                seen[team.step] = hashlib.sha256(weights).hexdigest(), len(sizes)
                since += team.all_gather_plain(len(sizes)) != [4, 4]
                if stops and since == STEPS_AFTER_A_MOVE:
                    os.kill(os.getpid(), signal.SIGTERM)
    except SystemExit:
        pass
    return seen
