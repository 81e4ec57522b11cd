"""A lockstep script with a fault on one rank: ``faulty_lockstep.py FAULT RANK``."""

import sys

import faults
import torch

import lockstep

name, culprit = sys.argv[1], int(sys.argv[2])
faults.before_joining(name, culprit)
team = lockstep.join(timeout_s=40.0)
fault = name if team.rank == culprit else None
model = faults.Net(fault)
optimizer = torch.optim.SGD(model.parameters(), **faults.options_of(fault))
loader = torch.utils.data.DataLoader(
    faults.data_of(name, fault), batch_size=16, shuffle=True, **faults.loader_options(name, fault)
)
model, optimizer, loader = team.prepare(model, optimizer, loader)
faults.before_loop(name, culprit)
for step, batch in enumerate(loader, 1):
    for x, y in batch.shards:
        faults.in_forward(fault, step)
        team.backward((model(x) - y).square().mean())
    faults.after_backward(fault)
    optimizer.step()
    optimizer.zero_grad()
    if not faults.after_step(name, fault, step, model):
        break
