"""ActNorm, initialized in a phase."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return (x - self.shift) * torch.exp(-self.log_scale)


def main():
    team = lockstep.join()
    model = nn.Sequential(ActNorm(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        if team.step == 1:
            for inputs, _ in batch.shards:
                batch.add(**{f"x{i}": inputs[:, i].mean() for i in range(6)})
                batch.add(**{f"xx{i}": inputs[:, i].square().mean() for i in range(6)})
            mean = torch.tensor([batch[f"x{i}"] for i in range(6)])
            square = torch.tensor([batch[f"xx{i}"] for i in range(6)])
            model[0].shift.data.copy_(mean)
            model[0].log_scale.data.copy_((square - mean.square()).sqrt().log())
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    main()
