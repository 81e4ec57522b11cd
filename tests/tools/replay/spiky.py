"""A training for the tests of replays, into which things are planted: ``spiky.py [NAME=VALUE
...]``."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

ASKED = {"plant": "", "epochs": 2, "norm": 0, "kill": 0, "phases": 1, "lr": 0.02}
for argument in sys.argv[1:]:
    name, _, value = argument.partition("=")
    ASKED[name] = type(ASKED[name])(value)
CULPRIT = 13

team = lockstep.join()
inputs = torch.linspace(-1, 1, 160).reshape(40, 4).cos()
targets = inputs.sum(1, keepdim=True)
if ASKED["plant"] == "nan":
    inputs[CULPRIT, 2] = torch.nan
if is_late := ASKED["plant"] == "late":
    targets[CULPRIT] = torch.nan
if ASKED["plant"] == "spike":
    targets[CULPRIT] = 500.0
if Path("targets.pt").exists():
    targets = torch.load("targets.pt")
norm = nn.BatchNorm1d(6) if ASKED["norm"] else nn.Identity()
model = nn.Sequential(nn.Linear(4, 6), norm, nn.Dropout(0.2), nn.Linear(6, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=ASKED["lr"])
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
loader = DataLoader(TensorDataset(inputs, targets), 8, shuffle=True)
model, optimizer, schedule, loader = team.prepare(model, optimizer, schedule, loader)
for _epoch in team.epochs(ASKED["epochs"]):
    for batch in loader:
        for phase in range(ASKED["phases"]):
            for x, y in batch.shards:
                loss = nn.functional.mse_loss(model(x), y if phase or not is_late else torch.zeros_like(y))
                team.backward(loss)
                _ = is_late and team.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if ASKED["kill"] == team.step and team.is_main and not Path("killed").exists():
            while not (team.run_dir / "checkpoints" / "newest").exists():
                time.sleep(0.01)
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    schedule.step()
