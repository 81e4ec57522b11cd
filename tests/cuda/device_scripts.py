"""Trainings on several devices of one process. Each function is one rank's script."""

import torch
from cuda_scripts import Points, deterministic_kernels
from torch import nn
from torch.utils.data import DataLoader

import lockstep


class Parts(nn.Module):
    """Two parts on two devices, with BatchNorm on one and dropout on the other."""

    def __init__(self, first, second):
        super().__init__()
        self.second = second
        self.below = nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU()).to(first)
        self.above = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 3)).to(second)

    def forward(self, x):
        return self.above(self.below(x).to(self.second))


class Whole(nn.Module):
    """No part of it looks at more than one sample, so that it does not matter which GPU has
    which."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.dtypes = []  # one list: copies share it

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        self.dtypes.append((hidden.dtype, hidden.device.index, len(x)))
        return self.last(hidden)


@deterministic_kernels()
def train_parts(epochs=2, **settings):
    """The state at the end, on the CPU, where it was, and what ``log`` and the checkpoint made of
    it."""
    with lockstep.join(**settings) as team:
        torch.manual_seed(0)
        model = Parts(team.devices[0], team.devices[-1])
        average = torch.optim.swa_utils.AveragedModel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loader = DataLoader(Points(40), 16, shuffle=True)
        model, average, optimizer, loader = team.prepare(model, average, optimizer, loader)
        losses = []
        for _ in team.epochs(epochs):
            for batch in loader:
                for inputs, targets in batch.shards:
                    outputs = model(inputs)
                    loss = nn.functional.cross_entropy(outputs, targets.to(outputs.device))
                    team.backward(loss)
                    batch.add(loss=loss, size=inputs.square().mean())  # from both devices
                team.log(loss=batch["loss"], size=batch["size"])
                team.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                average.update_parameters(model)
                optimizer.zero_grad()
                losses.append((batch["loss"], batch["size"]))
        state = {name: tensor.cpu() for name, tensor in [*model.state_dict().items(), *average.state_dict().items()]}
        for index, slots in optimizer.state_dict()["state"].items():
            state.update({f"optimizer {index} {name}": torch.as_tensor(value).cpu() for name, value in slots.items()})
        devices = [str(p.device) for p in model.parameters()]
        return {"state": state, "devices": devices, "losses": losses, "team": [str(device) for device in team.devices]}


def train_whole(**settings):
    """With ``strategy="dp"``, say: the state at the end, and in what formats and where the copies
    ran."""
    with lockstep.join(**settings) as team:
        torch.manual_seed(0)
        model = Whole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(Points(40), 16, shuffle=True)
        prepared, optimizer, loader = team.prepare(model, optimizer, loader)
        for _ in team.epochs(2):
            for batch in loader:
                for inputs, targets in batch.shards:
                    outputs = prepared(inputs)
                    team.backward(nn.functional.cross_entropy(outputs, targets))
                optimizer.step()
                optimizer.zero_grad()
        dtypes = [(str(dtype), gpu, length) for dtype, gpu, length in model.dtypes]
        state = {name: tensor.cpu() for name, tensor in prepared.state_dict().items()}
        return {"state": state, "ran": dtypes, "output": (str(outputs.dtype), str(outputs.device))}
