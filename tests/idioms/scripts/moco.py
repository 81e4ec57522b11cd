"""MoCo, its queue filled outside."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 4)
    keys_model = copy.deepcopy(model).requires_grad_(False)
    queue = functional.normalize(torch.randn(20, 4), dim=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randn(22, 6), 10, shuffle=True))
    team.register("queue", queue)
    for batch in loader:
        with torch.no_grad():
            for k, p in zip(keys_model.parameters(), model.parameters(), strict=True):
                k.lerp_(p, 0.1)
        found = []
        for inputs in batch.shards:
            queries = functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
            keys = functional.normalize(keys_model(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
            logits = torch.cat([(queries * keys).sum(dim=1, keepdim=True), queries @ queue.T], dim=1) / 0.2
            team.backward(functional.cross_entropy(logits, torch.zeros(len(inputs), dtype=torch.long)))
            found.append(keys)
        optimizer.step()
        optimizer.zero_grad()
        new, _ = team.all_gather_rows(found)
        queue.copy_(torch.cat([new, queue])[:20])
    return model, keys_model, queue


if __name__ == "__main__":
    main()
