"""DINO."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    student = nn.Linear(6, 4)
    teacher = copy.deepcopy(student).requires_grad_(False)
    centre = torch.zeros(4)
    optimizer = torch.optim.AdamW(student.parameters(), lr=0.01)
    student, optimizer, loader = team.prepare(student, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            wanted = teacher(inputs + 0.1 * torch.randn_like(inputs))
            logits = student(inputs + 0.1 * torch.randn_like(inputs))
            team.backward(functional.cross_entropy(logits / 0.1, ((wanted - centre) / 0.05).softmax(dim=1)))
            batch.add(centre=wanted.mean(dim=0), reduction="mean")
        optimizer.step()
        optimizer.zero_grad()
        centre.lerp_(batch["centre"].float(), 0.1)
        for t, p in zip(teacher.parameters(), student.parameters(), strict=True):
            t.data.lerp_(p.data, 0.1)
    return student, teacher, centre


if __name__ == "__main__":
    main()
