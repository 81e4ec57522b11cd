"""A mixture of experts."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 8)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(8))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(dim=1).max(dim=1)
        result = torch.zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()
            if len(rows):
                result = result.index_add(0, rows, expert(x[rows]) * weights[rows, None])
        return result


def main():
    team = lockstep.join()
    model = Mixture()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    unused = []
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        unused.append([name for name, p in model.named_parameters() if p.grad is None])
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer, unused


if __name__ == "__main__":
    main()
