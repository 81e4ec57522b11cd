"""Expert biases that follow loads."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x):
        scores = self.gate(x).sigmoid()
        chosen = (scores + self.bias).argmax(dim=1)
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        rows = torch.arange(len(x))
        return outputs[rows, chosen] * scores[rows, chosen, None], chosen.bincount(minlength=4)


def main():
    team = lockstep.join()
    model = Mixture()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for inputs, targets in batch.shards:
            outputs, loads = model(inputs)
            team.backward(functional.cross_entropy(outputs, targets))
            batch.add(loads=loads, reduction="sum")
        optimizer.step()
        optimizer.zero_grad()
        loads = batch["loads"].float()
        model.bias += 0.01 * torch.sign(loads.mean() - loads)
    return model, optimizer


if __name__ == "__main__":
    main()
