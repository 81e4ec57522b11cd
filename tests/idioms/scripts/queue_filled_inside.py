"""A queue filled inside."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 4)
    queue = functional.normalize(torch.randn(20, 4), dim=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    for batch in loader:
        for inputs in batch.shards:
            queries = functional.normalize(model(inputs), dim=1)
            logits = torch.cat([queries.square().sum(dim=1, keepdim=True), queries @ queue.T], dim=1) / 0.2
            team.backward(functional.cross_entropy(logits, torch.zeros(len(inputs), dtype=torch.long)))
            queue = torch.cat([queries.detach(), queue])[:20]
        optimizer.step()
        optimizer.zero_grad()
    return model, queue


if __name__ == "__main__":
    main()
