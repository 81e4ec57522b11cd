"""What the processes of these tests do."""

import collections
import contextlib

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._world.comm import short

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
)
MESSAGES = ("isend", "send")


@contextlib.contextmanager
def counted():
    """Counts what this process sends: collectives and messages, by name."""
    counts = collections.Counter()
    places = [(dist, name) for name in (*COLLECTIVES, *MESSAGES) if hasattr(dist, name)]
    places.append((short, "all_gather_flat"))  # a name of its own for one of PyTorch's
    originals = [getattr(module, name) for module, name in places]

    def wrap(name, original):
        def call(*args, **options):
            counts[name] += 1
            return original(*args, **options)

        return call

    for (module, name), original in zip(places, originals, strict=True):
        setattr(module, name, wrap(name, original))
    try:
        yield counts
    finally:
        for (module, name), original in zip(places, originals, strict=True):
            setattr(module, name, original)


def control_plane():
    """What this rank sends in each phase of a training: counts by phase."""
    phases = {}
    with counted() as counts:

        def done(phase):
            phases[phase] = dict(counts)
            counts.clear()

        torch.manual_seed(0)
        with lockstep.join(shards=16, seed=0, checkpoint_every="off") as team:
            done("join")
            data = TensorDataset(torch.randn(320, 8), torch.randint(0, 2, (320,)))
            model = torch.nn.Linear(8, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, batch_size=32))
            done("prepare")
            for epoch in team.epochs(2):
                for batch in loader:
                    for x, y in batch.shards:
                        loss = cross_entropy(model(x), y)
                        team.backward(loss)
                        batch.add(loss=loss)
                    optimizer.step()
                    optimizer.zero_grad()
                    if epoch == 1:
                        team.log(loss=batch["loss"], step=team.step)
                done("steps with log" if epoch else "steps")
                with team.evaluate(model, DataLoader(data, batch_size=32)) as evaluation:
                    for x, y in evaluation.shards:
                        evaluation.add(accuracy=model(x).argmax(1) == y)
                done("evaluation")
            done("end of the epoch")
        done("leave")
    return phases
