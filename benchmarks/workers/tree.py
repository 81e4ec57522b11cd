"""One process of ``exact.py`` or ``fsdp.py``: a transformer, trained by lockstep, or with stock DDP
or fully_shard.

    python benchmarks/workers/tree.py exact|fsdp|ddp|fully_shard --size 25M --shards V --steps N
    --run-dir DIR

All train on the same global batches, V shards of 4 sequences of 32 tokens, and a process runs its
shards one after another. DDP runs all but the last under no_sync(), as in its documentation, and
fully_shard does likewise. One thread a process. A turn is ``steps`` steps.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from turns import take_turns

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
# Width and layers, by about how many parameters that makes.
SIZES = {"0.5M": (96, 4), "5M": (256, 6), "25M": (512, 8), "100M": (1024, 8)}
SEQUENCES, TOKENS, WORDS = 4, 32, 200


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.last(self.layers(self.words(tokens))).transpose(1, 2)
        return result


def make_model(size: str) -> tuple[Transformer, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Transformer(*SIZES[size])
    return model, make_optimizer(model)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def make_batches(args: argparse.Namespace) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (args.shards * SEQUENCES, TOKENS)
    return [tuple(torch.randint(WORDS, (2, *shape), generator=generator)) for _ in range(args.steps)]


def lockstep(args: argparse.Namespace) -> Callable[[], None]:
    from lockstep import join

    settings = {"strategy": args.contender, "shards": args.shards, "run_dir": args.run_dir}
    if args.no_checkpoints:
        settings["checkpoint_every"] = "off"
    team = join(threads=1, progress="off", device="cpu", **settings)
    model, optimizer, loader = team.prepare(*make_model(args.size), make_batches(args))
    criterion = nn.CrossEntropyLoss()

    def turn() -> None:
        for batch in loader:
            for tokens, targets in batch.shards:
                loss = criterion(model(tokens), targets)
                team.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    return turn


def plain(args: argparse.Namespace) -> Callable[[], None]:
    torch.set_num_threads(1)
    model: Any
    model, optimizer = make_model(args.size)
    if args.contender == "fully_shard":
        optimizer = shard(model)
    elif WORLD_SIZE > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    own = range(RANK * args.shards // WORLD_SIZE, (RANK + 1) * args.shards // WORLD_SIZE)
    cut = [[(x.split(SEQUENCES)[shard], y.split(SEQUENCES)[shard]) for shard in own] for x, y in make_batches(args)]
    criterion = nn.CrossEntropyLoss()

    def turn() -> None:
        for shards in cut:
            for number, (tokens, targets) in enumerate(shards, 1):
                with unsynchronized(model) if number < len(shards) else contextlib.nullcontext():
                    loss = criterion(model(tokens), targets) / len(shards)
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return turn


def shard(model: Transformer) -> torch.optim.Optimizer:
    """Shard the blocks that lockstep would; returns the optimizer of the sharded parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # not needed by the others: 40 MB

    if WORLD_SIZE == 1:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for part in (*model.layers.layers, model):
        fully_shard(part, mesh=mesh)
    return make_optimizer(model)


@contextlib.contextmanager
def unsynchronized(model: Any) -> Iterator[None]:
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    elif WORLD_SIZE > 1:
        with model.no_sync():
            yield
    else:
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=["exact", "fsdp", "ddp", "fully_shard"])
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--no-checkpoints", action="store_true", help="no memory for copies, which the peers do not make")
    args = parser.parse_args()
    take_turns((lockstep if args.contender in ("exact", "fsdp") else plain)(args), warm_up=2)


if __name__ == "__main__":
    main()
