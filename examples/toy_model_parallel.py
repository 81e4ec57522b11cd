"""A model on two devices, with data-parallel training over processes that have two devices each.

python examples/toy_model_parallel.py                               one process, one device
lockstep run --devices-per-process 2 examples/toy_model_parallel.py one process per pair of GPUs
lockstep run --devices-per-process 2 --nproc-per-node 2 examples/toy_model_parallel.py

On a machine without GPUs both devices are the CPU, and all of it runs there too.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class ToyMpModel(nn.Module):
    """Two linear layers on two devices. Results are on the second."""

    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second
        self.net1 = nn.Linear(10, 10).to(first)
        self.net2 = nn.Linear(10, 5).to(second)

    def forward(self, x):
        hidden = torch.relu(self.net1(x.to(self.first)))
        return self.net2(hidden.to(self.second))


def make_data(num_samples):
    """Returns inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(10, 5, generator=generator)
    inputs = torch.randn(num_samples, 10, generator=generator)
    return TensorDataset(inputs, torch.tanh(inputs @ weight))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=40, help="samples in a step, over all processes")
    args = parser.parse_args()

    team = lockstep.join(shards=8)
    model = ToyMpModel(team.devices[0], team.devices[-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(make_data(1000), args.batch_size, shuffle=True)
    criterion = nn.MSELoss()

    model, optimizer, loader = team.prepare(model, optimizer, loader)
    for epoch in team.epochs(args.epochs):
        for batch in loader:
            for inputs, targets in batch.shards:  # on team.device, which is team.devices[0]
                outputs = model(inputs)
                loss = criterion(outputs, targets.to(outputs.device))
                team.backward(loss)
                batch.add(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            team.log(loss=batch["loss"])
        with team.evaluate(model, DataLoader(make_data(200), args.batch_size)) as evaluation:
            for batch in evaluation:
                for inputs, targets in batch.shards:
                    outputs = model(inputs)
                    batch.add(loss=criterion(outputs, targets.to(outputs.device)))
        team.print(f"epoch {epoch + 1}: loss {evaluation['loss']:.8f}")
    team.print(f"net1 on {model.net1.weight.device}, net2 on {model.net2.weight.device}")


if __name__ == "__main__":
    main()
