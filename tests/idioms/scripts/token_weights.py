"""A mean over tokens."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Embedding(20, 6, padding_idx=0), nn.Linear(6, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    words = torch.randint(1, 20, (22, 5))
    for row, length in enumerate(torch.randint(1, 6, (22,)).tolist()):
        words[row, length:] = 0
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(words, 10, shuffle=True))
    losses = []
    for batch in loader:
        for rows in batch.shards:
            loss = functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten(), ignore_index=0)
            team.backward(loss, weight=(rows != 0).sum())
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(batch["loss"])
    return model, losses


if __name__ == "__main__":
    main()
