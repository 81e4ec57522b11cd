"""A training script with one fault at a time, by name: as a function for the crew, and as a script
for the command."""

import random
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

import lockstep


class Numbers(Dataset):
    def __init__(self, fault):
        self.fault = fault

    def __len__(self):
        return 48 if self.fault == "longer" else 16

    def __getitem__(self, index):
        x = torch.arange(4) / 4 + index / 32
        if self.fault == "random data":
            x = x + torch.randn(4) + random.random() + np.random.rand()
        if self.fault == "innocent":
            x = x + np.random.default_rng(index).normal()
        if self.fault == "worker":
            x = x + (get_worker_info() is not None)
        return x, x.sum(0, keepdim=True)


class Faulty(nn.Module):
    """One that computes what it is told to, and more."""

    def __init__(self, team, fault):
        super().__init__()
        self.team = team
        self.fault = fault
        self.calls = 0

    def forward(self, x):
        fault = self.fault
        if fault == "clock":
            x = x * (time.perf_counter() % 1)
        if fault == "innocent":  # nothing depends on it
            self.calls += 1
        return x


def evaluate(team, model):
    """By chance, another value each time."""
    with team.evaluate(model, DataLoader(Numbers(""), 4)) as evaluation:
        for batch in evaluation:
            for x, _ in batch.shards:
                batch.add(mean=model(x).mean() + time.perf_counter() % 1)


def train(fault):
    team = lockstep.join()
    began = time.time()
    model = nn.Sequential(nn.Linear(4, 8), Faulty(team, fault), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Numbers(fault), 8, shuffle=True)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for _ in team.epochs(2 if fault == "evaluation" else 1):
        for batch in loader:
            for x, y in batch.shards:
                guess = model(x)
                if fault == "whole batch":
                    guess = guess - guess.mean()
                loss = nn.functional.mse_loss(guess, y, reduction="sum" if fault == "sum" else "mean")
                team.backward(
                    loss, **({"reduction": "mean"} if fault == "sum" else {})
                )  # or lockstep would see the sum itself
            optimizer.step()
            optimizer.zero_grad()
            if fault == "update by one rank":
                with torch.no_grad():
                    model[0].weight.add_(float(team.is_main))
            print(team.is_main, time.time() - began)  # innocent
            if team.is_main and fault == "fails":
                raise RuntimeError("no luck")
        if fault == "evaluation":
            evaluate(team, model)


if __name__ == "__main__":
    train(sys.argv[1] if len(sys.argv) > 1 else "")
