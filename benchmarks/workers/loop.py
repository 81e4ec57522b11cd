"""One contender of ``loop_overhead.py``: the same training, written as each library's documentation
writes it.

    python benchmarks/workers/loop.py CONTENDER --data samples|tensors --hidden N ... --steps N
    --batch N --run-dir DIR

Every contender trains the same model of linear layers on ``batch`` samples a process and step, with
one thread. A turn is one whole epoch, from asking for the loader's iterator to its end.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from turns import take_turns

Epoch = Callable[[], None]
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A dataset as users write it, whose samples can be read only one by one."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs = inputs
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.labels[index]


def make_data(args: argparse.Namespace) -> Dataset[Any]:
    num_samples = args.steps * args.batch * WORLD_SIZE
    inputs, labels = torch.randn(num_samples, 64), torch.randint(0, 10, (num_samples,))
    return Samples(inputs, labels) if args.data == "samples" else TensorDataset(inputs, labels)


def make_model(hidden: Sequence[int]) -> tuple[nn.Module, torch.optim.Optimizer]:
    """An MLP with hidden layers of these widths, and its optimizer."""
    layers: list[nn.Module] = []
    for wide, next_wide in itertools.pairwise([64, *hidden]):
        layers += [nn.Linear(wide, next_wide), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(hidden[-1], 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def by_hand(args: argparse.Namespace) -> Epoch:
    dataset, (model, optimizer), criterion = make_data(args), make_model(args.hidden), nn.CrossEntropyLoss()
    sampler: DistributedSampler[Any] | None = None
    if WORLD_SIZE > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
        sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch, shuffle=sampler is None, sampler=sampler)
    number = 0

    def epoch() -> None:
        nonlocal number
        if sampler is not None:
            sampler.set_epoch(number)
            number += 1
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def with_lockstep(args: argparse.Namespace) -> Epoch:
    import lockstep

    team = lockstep.join(threads=1, progress="off", run_dir=args.run_dir)
    model, optimizer = make_model(args.hidden)
    loader = DataLoader(make_data(args), args.batch * WORLD_SIZE, shuffle=True)
    criterion = nn.CrossEntropyLoss()
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    epochs = team.epochs(1_000_000)
    next(epochs)

    def epoch() -> None:
        for batch in loader:
            for inputs, labels in batch.shards:
                loss = criterion(model(inputs), labels)
                team.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        # what `for epoch in team.epochs(...)` does between two passes belongs to the first
        next(epochs)

    return epoch


def _with_backward(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[Any],
    backward: Callable[[Tensor], Any],
) -> Epoch:
    criterion = nn.CrossEntropyLoss()

    def epoch() -> None:
        for inputs, labels in loader:
            loss = criterion(model(inputs), labels)
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return epoch


def with_accelerate(args: argparse.Namespace) -> Epoch:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == WORLD_SIZE
    model, optimizer = make_model(args.hidden)
    loader = DataLoader(make_data(args), args.batch, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    return _with_backward(model, optimizer, loader, accelerator.backward)


def with_fabric(args: argparse.Namespace) -> Epoch:
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=WORLD_SIZE, strategy="ddp" if WORLD_SIZE > 1 else "auto")
    fabric.launch()
    assert fabric.world_size == WORLD_SIZE
    model, optimizer = fabric.setup(*make_model(args.hidden))
    loader = fabric.setup_dataloaders(DataLoader(make_data(args), args.batch, shuffle=True))
    return _with_backward(model, optimizer, loader, fabric.backward)


def with_ignite(args: argparse.Namespace) -> Epoch:
    import ignite.distributed as idist
    from ignite.engine import Engine, Events

    if WORLD_SIZE > 1:
        idist.initialize("gloo")
    assert idist.get_world_size() == WORLD_SIZE
    plain_model, plain_optimizer = make_model(args.hidden)
    model, optimizer = idist.auto_model(plain_model), idist.auto_optim(plain_optimizer)
    # auto_dataloader divides the batch among the processes.
    loader = idist.auto_dataloader(make_data(args), batch_size=args.batch * WORLD_SIZE, shuffle=True)
    criterion = nn.CrossEntropyLoss()

    def update(engine: Engine, batch: tuple[Tensor, Tensor]) -> None:
        inputs, labels = batch
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    trainer = Engine(update)
    if isinstance(loader.sampler, DistributedSampler):
        trainer.add_event_handler(Events.EPOCH_STARTED, lambda: loader.sampler.set_epoch(trainer.state.epoch))
    return lambda: trainer.run(loader, max_epochs=1) and None


CONTENDERS = {
    "by-hand": by_hand,
    "lockstep": with_lockstep,
    "accelerate": with_accelerate,
    "fabric": with_fabric,
    "ignite": with_ignite,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--data", choices=("samples", "tensors"), required=True)
    parser.add_argument("--hidden", type=int, nargs="+", required=True, help="the width of each hidden layer")
    parser.add_argument("--steps", type=int, required=True, help="steps of an epoch")
    parser.add_argument("--batch", type=int, required=True, help="samples a step on each process")
    parser.add_argument("--run-dir", required=True, help="where lockstep keeps its run")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    take_turns(CONTENDERS[args.contender](args))


if __name__ == "__main__":
    main()
