"""One rank breaks out of lockstep's loop and begins an evaluation, the others train on."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep

team = lockstep.join(shards=6, checkpoint_every="off")
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(1200, 4), torch.randn(1200, 1))
held_out = DataLoader(data, 24)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 12))
for _ in team.epochs(2):
    for batch in loader:  # OTHERS, while they agree on the next step
        for x, y in batch.shards:  # OTHERS
            loss = (model(x) - y).square().mean()
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if team.step == 20 and team.rank == int(sys.argv[1]):
            break  # CULPRIT
        team.log(loss=batch["loss"])
    with team.evaluate(model, held_out) as evaluation:
        for x, y in evaluation.shards:
            evaluation.add(error=(model(x) - y).abs())
