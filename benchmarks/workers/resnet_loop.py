"""One contender of ``resnet50.py``: one process that trains a residual network on images in memory.

    python benchmarks/workers/resnet_loop.py CONTENDER --arch NAME --device D --batch N --size N
    --steps N --run-dir DIR

``article`` and ``article amp`` are the loops of the article: convolutions channel by channel,
float32 images, PyTorch's default SGD, and with ``amp`` float16 autocast with a GradScaler.
``by-hand`` is the best loop that we could write: channels_last, bfloat16 autocast, fused SGD,
compiled, and bytes that travel to the GPU while the step before still runs. ``lockstep`` is the
same with ``team.prepare``, at V = 1. ``parts`` and ``V=2`` are these two with each batch in two
halves, and two passes a step. ``ddp`` and ``V=W`` run on several GPUs: by hand with
DistributedDataParallel, and lockstep's ``exact`` with a shard for each. A turn is ``steps`` steps;
``--batch`` is a GPU's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from turns import take_turns

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from resnet import make_resnet

NUM_BATCHES = 4
NUM_CLASSES = 1000
Train = Callable[[int], list[Tensor]]
"""Takes so many steps, and returns their losses."""


def make_batches(args: argparse.Namespace, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Images in the host's memory, from which a GPU copies by itself."""
    batches = []
    for _ in range(NUM_BATCHES):
        pixels = torch.randint(0, 256, (args.batch, 3, args.size, args.size), dtype=torch.uint8)
        images = pixels if dtype == torch.uint8 else pixels.to(dtype).sub_(127.5).div_(60)
        batch = images, torch.randint(0, NUM_CLASSES, (args.batch,))
        batches.append(tuple(tensor.pin_memory() for tensor in batch) if args.device == "cuda" else batch)
    return batches


def on_gpu(batches: Iterable[tuple[Tensor, Tensor]], device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches on the GPU, each one copied there while the step before it still runs."""
    if device == "cpu":
        yield from batches
        return
    copying, computing = torch.cuda.Stream(), torch.cuda.current_stream()
    coming: tuple[tuple[Tensor, Tensor], torch.cuda.Event] | None = None

    def arrived() -> tuple[Tensor, Tensor]:
        assert coming is not None
        (images, labels), event = coming
        computing.wait_event(event)
        for tensor in (images, labels):
            # its memory must not be copied into before the step is over
            tensor.record_stream(computing)
        return images, labels

    for images, labels in batches:
        with torch.cuda.stream(copying):
            batch = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            event = torch.cuda.Event()
            event.record(copying)
        if coming is not None:
            yield arrived()
        coming = batch, event
    if coming is not None:
        yield arrived()


class FromBytes(nn.Module):
    """Images of bytes, scaled and laid out on the GPU, where it costs next to nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        images = (pixels.float() - 127.5) / 60
        result: Tensor = self.model(images.contiguous(memory_format=torch.channels_last))
        return result


def make_optimizer(model: nn.Module, *, fused: bool | None = None) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=fused)


def as_in_the_article(args: argparse.Namespace, *, amp: bool) -> Train:
    # The article's PyTorch 1.8 let GPUs of its kind multiply float32 as TF32; today's lets
    # convolutions only.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    batches = make_batches(args, torch.float32)
    model = make_resnet(args.arch, NUM_CLASSES).to(args.device)
    optimizer, criterion = make_optimizer(model), nn.CrossEntropyLoss()
    scaler = torch.amp.GradScaler(args.device, enabled=amp)

    def train(num_steps: int) -> list[Tensor]:
        losses = []
        for batch in itertools.islice(itertools.cycle(batches), num_steps):
            images, labels = (tensor.to(args.device, non_blocking=True) for tensor in batch)
            with torch.autocast(args.device, torch.float16, enabled=amp):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return losses

    return train


def make_best_model(args: argparse.Namespace) -> nn.Module:
    model = FromBytes(make_resnet(args.arch, NUM_CLASSES)).to(args.device, memory_format=torch.channels_last)
    if args.compiler == "none":
        return model
    compiled: nn.Module = torch.compile(model, dynamic=False, backend=args.compiler)
    return compiled


def by_hand(args: argparse.Namespace, *, num_parts: int = 1, ddp: bool = False) -> Train:
    if ddp:
        if args.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    batches = make_batches(args, torch.uint8)
    model = make_best_model(args)
    if ddp:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)
    optimizer, criterion = make_optimizer(model, fused=True), nn.CrossEntropyLoss()

    def train(num_steps: int) -> list[Tensor]:
        losses = []
        for images, labels in on_gpu(itertools.islice(itertools.cycle(batches), num_steps), args.device):
            for part, wanted in zip(images.chunk(num_parts), labels.chunk(num_parts), strict=True):
                with torch.autocast(args.device, torch.bfloat16):
                    logits = model(part)
                loss = criterion(logits.float(), wanted)
                (loss / num_parts if num_parts > 1 else loss).backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        return losses

    return train


class Source:
    """Ready batches that are on the GPU already: of use to a process that has the GPU and the batch
    for itself."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._batches = make_batches(args, torch.uint8)
        self._device = args.device
        self.num_steps = 1

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return on_gpu(itertools.islice(itertools.cycle(self._batches), self.num_steps), self._device)


class HostSource:
    """The batches of all GPUs, in memory: lockstep copies to each what is its own."""

    def __init__(self, args: argparse.Namespace, world_size: int) -> None:
        whole = argparse.Namespace(**{**vars(args), "batch": args.batch * world_size})
        self._batches = make_batches(whole, torch.uint8)
        self.num_steps = 1

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return itertools.islice(itertools.cycle(self._batches), self.num_steps)


def with_lockstep(args: argparse.Namespace, *, num_shards: int | None = 1) -> Train:
    """Args: num_shards: V; None: W, with the strategy ``exact``."""
    import lockstep

    settings = {"precision": "bf16-mixed", "device": args.device, "progress": "off", "checkpoint_every": "off"}
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    settings |= {"strategy": "exact"} if num_shards is None else {}
    settings |= {"threads": torch.get_num_threads(), "run_dir": args.run_dir}
    team = lockstep.join(shards=num_shards or world_size, **settings)
    torch.manual_seed(0)  # as for the others: join() has begun the run's own stream
    source = Source(args) if num_shards else HostSource(args, world_size)
    model = make_best_model(args)
    optimizer, criterion = make_optimizer(model, fused=True), nn.CrossEntropyLoss()
    model, optimizer, loader = team.prepare(model, optimizer, source)
    epochs = team.epochs(1_000_000)
    next(epochs)

    def train(num_steps: int) -> list[Tensor]:
        losses = []
        source.num_steps = num_steps
        for batch in loader:
            for images, labels in batch.shards:
                loss = criterion(model(images).float(), labels)
                team.backward(loss)
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        next(epochs)
        return losses

    return train


CONTENDERS: dict[str, Callable[[argparse.Namespace], Train]] = {
    "article": lambda args: as_in_the_article(args, amp=False),
    "article amp": lambda args: as_in_the_article(args, amp=True),
    "by-hand": by_hand,
    "lockstep": with_lockstep,
    "parts": lambda args: by_hand(args, num_parts=2),
    "V=2": lambda args: with_lockstep(args, num_shards=2),
    "ddp": lambda args: by_hand(args, ddp=True),
    "V=W": lambda args: with_lockstep(args, num_shards=None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--arch", required=True, help="of examples/resnet.py")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--compiler", default="inductor", help="backend of torch.compile; none: not compiled")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="pixels of an image, in each direction")
    parser.add_argument("--steps", type=int, required=True, help="of a turn")
    parser.add_argument("--run-dir", required=True, help="where lockstep keeps its run")
    parser.add_argument("--losses", action="store_true", help="take the steps of one turn, say the losses, and end")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = CONTENDERS[args.contender](args)
    if args.losses:
        print(*(loss.item().hex() for loss in train(args.steps)), file=sys.stderr)
        return

    def settle() -> None:
        if args.device == "cuda":
            torch.cuda.synchronize()

    def work() -> None:
        train(args.steps)
        settle()

    def before() -> None:
        if args.device == "cuda":
            train(2)  # to have the memory again
            settle()

    def after() -> None:
        if args.device == "cuda":
            torch.cuda.empty_cache()  # several contenders share the GPU

    take_turns(work, before=before, after=after)


if __name__ == "__main__":
    main()
