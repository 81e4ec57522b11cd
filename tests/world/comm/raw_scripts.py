"""A training that calls collectives of ``torch.distributed`` by itself, at one of its places."""

import torch
import torch.distributed as dist
from codes import refusal_of
from torch.utils.data import DataLoader, TensorDataset

import lockstep

ONE = torch.ones(2)
COLLECTIVES = {
    "all_reduce": lambda size: dist.all_reduce(ONE.clone()),
    "all_reduce, not waited for": lambda size: dist.all_reduce(ONE.clone(), async_op=True),
    "reduce": lambda size: dist.reduce(ONE.clone(), 0),
    "broadcast": lambda size: dist.broadcast(ONE.clone(), 0),
    "all_gather": lambda size: dist.all_gather([torch.empty(2) for _ in range(size)], ONE),
    "reduce_scatter": lambda size: dist.reduce_scatter_tensor(torch.empty(2), ONE.repeat(size)),
    "all_to_all": lambda size: dist.all_to_all_single(torch.empty(2 * size), ONE.repeat(size)),
    "barrier": lambda size: dist.barrier(),
    "all_gather_object": lambda size: dist.all_gather_object([None] * size, "one"),
}


def told(place, name="all_reduce"):
    """The refusal of a training in which every rank calls this collective there; None: it ended
    well."""
    return refusal_of(train, place, COLLECTIVES[name])


def train(place, collective):
    """``place``: inside a shard, in the second of the process's shards in step 2 alone."""
    with lockstep.join() as team:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(12, 1)), batch_size=4)
        model, optimizer, loader = team.prepare(model, optimizer, loader)

        def at(here):
            if here == place:
                collective(team.world_size)

        at("before the loop")
        for batch in loader:
            at("before the shards")
            for number, (x,) in enumerate(batch.shards):
                is_chosen = (team.step, number) == (2, 1)
                if is_chosen:
                    at("before the forward pass")
                loss = model(x).mean()
                if is_chosen:
                    at("before the backward pass")
                    if place == "in the backward pass":
                        loss.register_hook(lambda gradient: collective(team.world_size))
                    if place == "between two backward passes":
                        team.backward(model(x).sum())
                        collective(team.world_size)
                    if place == "without a backward pass":
                        collective(team.world_size)
                        continue
                team.backward(loss)
                if is_chosen:
                    at("after the backward pass")
            at("after the shards")
            optimizer.step()
            optimizer.zero_grad()
            at("after the step")
        at("after the loop")
