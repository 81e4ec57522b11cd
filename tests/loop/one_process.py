"""The loop of one process, put together without a run directory, checkpoints or a launcher."""

from types import SimpleNamespace

import torch
from exchange_ranks import Exchanges, Rank

from lockstep._data.batch import Batch
from lockstep._listener import EVENTS, Listener, Listeners
from lockstep._loop.phase import RunParts
from lockstep._loop.phases import Phases
from lockstep._plan.blocks import blocks_of
from lockstep._plan.shards import plan_step
from lockstep._prepare.guards import ShardGuards
from lockstep._prepare.trained import TrainedObjects
from lockstep._sync.exact import ExactStrategy
from lockstep._sync.single import SingleStrategy


class Noting(Listener):
    """Notes every event with its number of the step, phase or shard."""

    def __init__(self):
        self.events = []


def _note(name):
    def method(self, *args, **options):
        number = getattr(args[0], "shard", args[0]) if args else None
        self.events.append((name, number) if isinstance(number, int) else name)

    return method


for _name in EVENTS:
    setattr(Noting, _name, _note(_name))


class Process:
    """Phases of rank ``rank`` of as many ranks as ``sizes`` has, with a model of one weight. Only a
    single rank can end a phase.

    Args:
        accumulate: the global batches of a step.
        scaling: of the losses.
    """

    def __init__(self, sizes=(2,), strategy="exact", rank=0, seed=5, accumulate=1, scaling=None):
        num_shards = sum(sizes)
        self.blocks, self.rank, self.accumulate = blocks_of(sizes), rank, accumulate
        alone = strategy == "single"
        sync = SingleStrategy(num_shards, accumulate) if alone else ExactStrategy(rank, len(sizes), num_shards)
        trained = TrainedObjects(scaling)
        guards = ShardGuards(trained, num_shards, is_plain=sync.is_plain)
        self.noting = Noting()
        peers = Rank(Exchanges(len(sizes)), rank, sizes, accumulate).peers
        listeners = Listeners([self.noting])
        run = RunParts(seed, num_shards, sync, peers, trained, guards, listeners.on, lambda _: None)
        self.phases = Phases(run, listeners, lambda mine: mine)
        self.model = torch.nn.Linear(1, 1, bias=False)
        with torch.no_grad():
            self.model.weight.fill_(1.0)
        self._number = 0
        self._is_alone = len(sizes) == 1
        self.add(self.model)

    def add(self, model):
        """Trains another model, too."""
        if self._is_alone:
            self.phases.parts.strategy.attach(model)
        self.phases.trained.add_model(model, SimpleNamespace(reaches_backward=False))
        self.phases.guards.add_model(model)

    def batch(self, num_samples=8, first=0.0):
        """The next batch, of the numbers from ``first`` on, in a step that begins. ``num_samples``:
        in each of its global batches."""
        batch = self.following_batch(num_samples, first)
        self.phases.begin_step(batch.plan)
        return batch

    def following_batch(self, num_samples=8, first=0.0):
        """A batch of a second loader, with which no step begins."""
        self._number += 1
        plan = plan_step(self._number, (num_samples,) * self.accumulate, self.rank, self.blocks)
        parts = (first + torch.arange(float(num_samples * self.accumulate)).unsqueeze(1)).split(num_samples)
        return Batch(plan, [parts[micro.part][micro.rows] for micro in plan.micro_batches], self.phases, None)

    def run_alone(self, batch):
        """Yields the micro-batches of this rank in a phase that ends without the other ranks."""
        self.phases.begin_phase(batch)
        for micro, samples in zip(batch.plan.micro_batches, batch.data, strict=True):
            self.phases.phase.begin_shard(micro, samples)
            yield micro
            self.phases.phase.end_shard()
        self.phases.phase.abandon()
        self.phases.phase = None
        self.phases._current.num_done += 1
        self.phases.resume_stream()

    def backward(self, x, **options):
        """The backward pass of the mean of a shard, whose gradient is that of ``x``."""
        self.phases.backward(self.model(x).mean(), options.pop("weight", None), options.pop("reduction", None), options)

    def train(self, batch):
        """A phase."""
        for x in batch.shards:
            self.backward(x)

    @property
    def gradient(self):
        return None if self.model.weight.grad is None else self.model.weight.grad.item()

    def clear(self):
        self.model.weight.grad = None
