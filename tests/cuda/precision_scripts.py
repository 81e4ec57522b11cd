"""A small training on a GPU in any precision. Each function is one rank's script."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import lockstep


class Net(nn.Module):
    """Convolutions with BatchNorm, a block that is run again in the backward pass, and another
    normalisation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.block = nn.Sequential(nn.Linear(288, 32), nn.GELU(), nn.LayerNorm(32))
        self.last = nn.Linear(32, 3)
        self.register_buffer("shift", torch.linspace(0, 1, 288))

    def forward(self, x):
        hidden = self.first(x) + self.shift
        self.seen = {"conv": self.first[0].weight.dtype, "norm": self.first[1].weight.dtype, "inputs": x.dtype}
        return self.last(checkpoint(self.block, hidden, use_reentrant=False))


def train():
    """Three epochs and an evaluation; what came of it, on the CPU, and the formats that were seen
    on the way."""
    with lockstep.join() as team:
        generator = torch.Generator().manual_seed(3)
        data = TensorDataset(torch.randn(48, 1, 8, 8, generator=generator), torch.arange(48) % 3)
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 16))
        losses = []
        for _ in team.epochs(3):
            for batch in loader:
                for inputs, targets in batch.shards:
                    outputs = model(inputs)
                    loss = nn.functional.cross_entropy(outputs, targets)
                    team.backward(loss)
                    batch.add(loss=loss)
                team.clip_grad_norm_(model.parameters(), 5.0)
                gradients = {str(p.grad.dtype) for p in model.parameters()}
                optimizer.step()
                optimizer.zero_grad()
                losses.append(batch["loss"])
        with team.evaluate(model, DataLoader(data, 16)) as evaluation:
            for batch in evaluation:
                for inputs, targets in batch.shards:
                    batch.add(loss=nn.functional.cross_entropy(model(inputs), targets))
        return {
            "state": {name: tensor.cpu() for name, tensor in model.state_dict().items()},
            "seen": {name: str(dtype) for name, dtype in model.seen.items()},
            "parameters": sorted({str(parameter.dtype) for parameter in model.parameters()}),
            "momentum": sorted({str(slot["momentum_buffer"].dtype) for slot in optimizer.state.values()}),
            "gradients": sorted(gradients),
            "outputs": str(outputs.dtype),
            "losses": losses,
            "result": evaluation["loss"],
        }
