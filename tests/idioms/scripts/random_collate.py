"""Random masking in `collate_fn`."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def mask(rows):
    words = torch.stack(rows)
    hidden = torch.rand(words.shape) < 0.3
    return words.masked_fill(hidden, 0), words


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Embedding(20, 6), nn.Linear(6, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(torch.randint(1, 20, (22, 5)), 10, shuffle=True, collate_fn=mask)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for batch in loader:
        for masked, words in batch.shards:
            team.backward(functional.cross_entropy(model(masked).flatten(0, 1), words.flatten()))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
