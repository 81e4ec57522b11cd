"""A tiny model on 128 shards, evaluated after every epoch of 20 steps. STOP_AT: the step at which
the run is asked to stop."""

import hashlib
import os
import signal

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lockstep

STOP_AT = int(os.environ.get("STOP_AT", "0"))
team = lockstep.join(shards=128, seed=0, timeout_s=600)
inputs = torch.randn(20 * 128, 16)
data = TensorDataset(inputs, (inputs @ torch.randn(16, 4)).argmax(1))
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, batch_size=128, shuffle=True))
test_loader = DataLoader(TensorDataset(*data[:640]), batch_size=40)
for _ in team.epochs(int(os.environ.get("EPOCHS", "5"))):
    for batch in loader:
        for x, y in batch.shards:
            loss = cross_entropy(model(x), y)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        if team.step == STOP_AT and team.is_main:
            os.kill(os.getpid(), signal.SIGTERM)
    with team.evaluate(model, test_loader) as evaluation:
        for x, y in evaluation.shards:
            evaluation.add(accuracy=model(x).argmax(1) == y)
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in team.unwrap(model).state_dict().values()))
team.print(f"step {team.step}, accuracy {evaluation['accuracy']:.6f}, SHA-256 {digest.hexdigest()[:16]}")
