"""Lists of tensors (detection)."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(6), torch.randn(i % 3 + 1, 2)) for i in range(22)]
    loader = DataLoader(data, 10, shuffle=True, collate_fn=lambda rows: tuple(zip(*rows, strict=True)))
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for batch in loader:
        for inputs, boxes in batch.shards:
            found = model(torch.stack(inputs))
            team.backward(sum((b - f).square().mean() for f, b in zip(found, boxes, strict=True)) / len(boxes))
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
