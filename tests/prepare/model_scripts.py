"""Models that are prepared in worker processes."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep


def compiled(backend):
    """Train a model that the user has compiled before preparing it. Its weights, and the outputs' type."""
    with lockstep.join() as team:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        names = list(model.state_dict())
        model = torch.compile(model, dynamic=False, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(16, 2, generator=torch.Generator().manual_seed(1)))
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 8))
        for batch in loader:
            for (inputs,) in batch.shards:
                outputs = model(inputs)
                team.backward(outputs.square().mean())
            optimizer.step()
            optimizer.zero_grad()
        state = {name.removeprefix("_orig_mod."): tensor.tolist() for name, tensor in model.state_dict().items()}
        return list(state) == names, state, str(outputs.dtype)


def eager():
    """The same, not compiled."""
    compile_, torch.compile = torch.compile, lambda model, **_: model
    try:
        return compiled("none")
    finally:
        torch.compile = compile_
