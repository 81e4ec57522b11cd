"""Tied weights."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

import lockstep


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.hidden = nn.Linear(6, 6)
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words):
        return self.head(torch.tanh(self.hidden(self.embedding(words))))


def main():
    team = lockstep.join()
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(torch.randint(0, 12, (22, 7)), 10, shuffle=True))
    for batch in loader:
        for words in batch.shards:
            team.backward(functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()))
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


if __name__ == "__main__":
    main()
