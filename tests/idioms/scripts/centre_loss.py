"""Center loss."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    features = nn.Linear(6, 4)
    head = nn.Linear(4, 3)
    centres = nn.Embedding(3, 4)
    model = nn.ModuleList([features, head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for_centres = torch.optim.SGD(centres.parameters(), lr=0.5)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, centres, optimizer, for_centres, loader = team.prepare(
        model, centres, optimizer, for_centres, DataLoader(data, 10, shuffle=True)
    )
    for batch in loader:
        for inputs, targets in batch.shards:
            found = model[0](inputs)
            pull = (found - centres(targets)).square().sum(dim=1).mean()
            team.backward(functional.cross_entropy(model[1](torch.relu(found)), targets) + 0.1 * pull)
        for p in centres.parameters():
            p.grad /= 0.1
        optimizer.step()
        optimizer.zero_grad()
        for_centres.step()
        for_centres.zero_grad()
    return model, centres


if __name__ == "__main__":
    main()
