"""REINFORCE."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def main():
    team = lockstep.join()
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(22, 6), torch.randint(0, 4, (22,)))
    model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 10, shuffle=True))
    baseline = 0.0
    for batch in loader:
        for states, best in batch.shards:
            choices = torch.distributions.Categorical(logits=model(states))
            actions = choices.sample()
            rewards = (actions == best).float()
            team.backward(-((rewards - baseline) * choices.log_prob(actions)).mean())
            batch.add(reward=rewards.mean())
        optimizer.step()
        optimizer.zero_grad()
        baseline = 0.9 * baseline + 0.1 * batch["reward"]
    return model, baseline


if __name__ == "__main__":
    main()
