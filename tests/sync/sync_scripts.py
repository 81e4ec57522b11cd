"""The protocol of a Sync, walked through by hand, without a team's loop."""

import torch
from torch import nn

import lockstep
from lockstep.plan.shards import micro_steps, num_active_ranks
from lockstep.sync.ddp import DataParallel
from lockstep.sync.dp import OneProcess
from lockstep.sync.exact import Exact
from lockstep.sync.horovod import Horovod
from lockstep.sync.single import Single


class Model(nn.Module):
    """Its gradient for the loss below is known; its buffers tell what was seen."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.narrow = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.never = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("count", torch.tensor(2**53, dtype=torch.int64))
        self.register_buffer("constant", torch.full((2,), 0.1))

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.5).add_(0.5 * x.mean(0))
            self.count += 1
        return x @ self.weight + self.narrow.float()


def samples(step, number):
    return torch.randn(number, 2, generator=torch.Generator().manual_seed(step))


def make(kind, team, **options):
    if kind == "single":
        return Single(team.num_shards)
    if kind == "horovod":
        return Horovod(team.num_shards, team._meeting, timeout_s=60)
    if kind == "dp":
        return OneProcess(team.num_shards, 1, team.devices)
    if kind == "exact":
        return Exact(team.rank, team.world_size, team.num_shards)
    if kind == "exact, by collectives":
        return Exact(team.rank, team.world_size, team.num_shards, cards=[torch.device("cpu")])
    if kind == "exact, between hosts":
        return Exact(team.rank, team.world_size, team.num_shards, between_hosts=True)
    return DataParallel(team.num_shards, team._meeting, **{"find_unused": False, **options})


def walk(kind, sizes, weights=None, drops=()):
    """The gradients and buffers after each step whose global batch has so many samples. ``weights``: by shard."""
    with lockstep.join() as team:
        sync, model = make(kind, team), Model()
        forward = sync.attach(model)
        seen = []
        for step, size in enumerate(sizes, 1):
            turns = micro_steps(step, (size,), team.rank, team.world_size, team.num_shards)
            inputs = samples(step, size)
            if not turns:
                sync.absent(num_active_ranks(size, team.world_size, team.num_shards))
            for turn in turns:
                sync.begin(turn)
                first = sum(len(range(s, size, team.num_shards)) for s in range(turn.shard))
                x = inputs[first : first + turn.num_samples]
                sync.backward(forward(x).sum(1).mean(), None if weights is None else weights[turn.shard])
                if not turn.is_last:
                    assert model.weight.grad is None
                if step in drops:
                    sync.drop()
                    break
            else:
                sync.end_step()
            if turns:
                state = {name: tensor.clone() for name, tensor in model.named_buffers()}
                grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
                seen.append((step, grads, state))
            for parameter in model.parameters():
                parameter.grad = None
        sync.close()
        del forward
        return seen


def join_with(strategy):
    """Nothing but a run with this strategy."""
    lockstep.join(strategy=strategy).close()


def start_unlike():
    """Models that differ between ranks are made equal."""
    with lockstep.join() as team:
        torch.manual_seed(team.rank)
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model[1].running_mean.fill_(team.rank)
        sync = make("ddp", team)
        sync.attach(model)
        sync.close()
        return {name: tensor.tolist() for name, tensor in model.state_dict().items()}
