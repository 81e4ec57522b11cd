"""SimSiam."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            one, two = (model[0](inputs * (torch.rand_like(inputs) > 0.2)) for _ in range(2))
            loss = functional.cosine_similarity(model[1](one), two.detach()).mean()
            team.backward(-loss - functional.cosine_similarity(model[1](two), one.detach()).mean())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
