"""Length buckets."""

import random

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Sampler

import lockstep


class ByLength(Sampler):
    def __init__(self, lengths, size):
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [order[first : first + size] for first in range(0, len(order), size)]

    def __iter__(self):
        yield from random.sample(self.batches, len(self.batches))

    def __len__(self):
        return len(self.batches)


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Embedding(20, 6, padding_idx=0), nn.Linear(6, 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lengths = torch.randint(1, 9, (22,)).tolist()
    data = [torch.randint(1, 20, (length,)) for length in lengths]
    loader = DataLoader(data, batch_sampler=ByLength(lengths, 10), collate_fn=collate)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for batch in loader:
        for words in batch.shards:
            loss = functional.cross_entropy(model(words).flatten(0, 1), words.flatten(), ignore_index=0)
            team.backward(loss, weight=(words != 0).sum())
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
