"""What a type checker knows of a script, by ``make check``: mypy finds each error here, and no
other."""

from typing import Any, assert_type

import torch
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._data.batch import Batch
from lockstep._data.loader import PreparedLoader


class Net(torch.nn.Sequential):  # can be iterated, and is no loader for it
    depth: int = 3


team = lockstep.join(shards=4, checkpoint_every="10m", rank=0, world_size=1)
lockstep.join(shard=4)  # type: ignore[call-arg]
lockstep.join(audit="2")  # type: ignore[arg-type]
lockstep.join(shards="4")  # type: ignore[arg-type]

net = Net(torch.nn.Linear(4, 2))
sgd = torch.optim.SGD(net.parameters())
steps = torch.optim.lr_scheduler.StepLR(sgd, 1)
data = DataLoader(TensorDataset(torch.zeros(4, 4), torch.zeros(4)))

model, optimizer, loader = team.prepare(net, sgd, data)
assert_type(model, Net)
assert_type(optimizer, torch.optim.SGD)
assert_type(loader, PreparedLoader)
assert_type(model.depth, int)
model.depth.nonsense  # type: ignore[attr-defined]  # noqa: B018
for batch in loader:
    assert_type(batch, Batch)
    batch.to("cpu")  # type: ignore[attr-defined]
    for x, y in batch.shards:
        team.backward(model(x).sum())
        batch.add(loss=y)
    assert_type(batch["loss"], Any)  # a tensor, if tensors were added
    assert_type(loader.averages, dict[str, float])

assert_type(team.prepare(net), Net)
assert_type(team.prepare([torch.zeros(2)]), PreparedLoader)
assert_type(team.prepare(net, sgd), tuple[Net, torch.optim.SGD])
assert_type(team.prepare(net, data), tuple[Net, PreparedLoader])
assert_type(team.prepare(net, sgd, steps), tuple[Net, torch.optim.SGD, torch.optim.lr_scheduler.StepLR])
assert_type(team.prepare(net, sgd, steps, data)[3], PreparedLoader)
assert_type(team.prepare(net, net, sgd, sgd, data)[4], PreparedLoader)
first, *others = team.prepare(net, *[sgd, sgd], data)
team.prepare(3)  # type: ignore[call-overload]
