"""Q-learning."""

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(4, 2)
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 4), torch.randint(0, 2, (22,)), torch.randn(22), torch.randn(22, 4))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    for batch in loader:
        for states, actions, rewards, following in batch.shards:
            values = model(states).gather(1, actions[:, None])[:, 0]
            wanted = rewards + 0.9 * target(following).max(dim=1).values
            team.backward(functional.smooth_l1_loss(values, wanted))
        optimizer.step()
        optimizer.zero_grad()
        if team.step % 2 == 0:
            target.load_state_dict(model.state_dict())
    return model, target


if __name__ == "__main__":
    main()
