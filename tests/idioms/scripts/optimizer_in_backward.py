"""An optimizer step in backward hooks."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 3, (22,)))
    model, *_, loader = team.prepare(model, *optimizers.values(), DataLoader(data, 10))

    def step_now(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step_now)
    for batch in loader:
        for inputs, targets in batch.shards:
            loss = functional.cross_entropy(model(inputs), targets)
            team.backward(loss)
            batch.add(loss=loss)
    return model


if __name__ == "__main__":
    main()
