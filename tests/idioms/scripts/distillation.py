"""An unprepared frozen teacher."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    teacher = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).eval().requires_grad_(False)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            wanted = (teacher(inputs) / 2).log_softmax(dim=1)
            logits = model(inputs)
            soft = functional.kl_div((logits / 2).log_softmax(dim=1), wanted, log_target=True, reduction="batchmean")
            team.backward(functional.cross_entropy(logits, targets) + 4 * soft)
        optimizer.step()
        optimizer.zero_grad()
    return model, teacher


if __name__ == "__main__":
    main()
