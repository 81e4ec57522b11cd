"""One rank calls what the others do not, inside lockstep's loop: ``CULPRIT CALL``."""

import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

import lockstep

team = lockstep.join(shards=6, checkpoint_every="off", timeout_s=60.0)
is_culprit = team.rank == int(sys.argv[1])
leader = 0 if int(sys.argv[1]) else team.world_size - 1  # the culprit takes itself for it
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(1200, 4), torch.randn(1200, 1))
model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 12))
for batch in loader:
    for x, y in batch.shards:  # OTHERS
        team.backward((model(x) - y).square().mean())
        if team.step == 20 and sys.argv[2] == "all_gather" and is_culprit:
            dist.all_gather(list(torch.zeros(team.world_size, 1)), torch.ones(1))  # all_gather
    optimizer.step()
    optimizer.zero_grad()
    if team.step == 20 and sys.argv[2] == "broadcast":
        if is_culprit:
            dist.broadcast(torch.ones(5), src=team.rank)  # broadcast
        else:
            dist.broadcast(torch.ones(5), src=leader)  # LEADER
    if team.step == 20 and sys.argv[2] == "new_group" and is_culprit:
        dist.new_group(list(range(team.world_size)))  # new_group
