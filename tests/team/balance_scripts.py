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

NUM_EPOCHS = 30
STEPS_AFTER_A_MOVE = 3


def train(sleep_s, num_epochs, stops=False, strategy="auto"):
    """The weights' digest after each step, and the shards of this rank in it.

    Args:
        sleep_s: rank 1 takes so long for each shard.
        num_epochs: of two steps each.
        stops: whether the run is asked to stop some steps after shards have moved; else it goes on to the end.
        strategy: of the run.
    """
    team = lockstep.join(strategy=strategy)
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(39, 6, generator=generator), torch.arange(39) % 3)
    carried = team.per_shard("number of steps", 0)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 20, shuffle=True))
    seen, since = {}, 0
    try:
        for _ in team.epochs(num_epochs):
            for batch in loader:
                sizes = []
                for inputs, targets in batch.shards:
                    team.backward(functional.cross_entropy(model(inputs), targets))
                    carried.value += 1
                    assert carried.value == team.step, "what a shard carries has not moved with it"
                    sizes.append(len(inputs))
                    time.sleep(sleep_s if team.rank == 1 else 0)
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
