"""What the scripts of ``benchmarks/samples.py`` share: their options, data and models, and the
notes that they leave."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, IterableDataset

Sample = dict[str, torch.Tensor]


class Numbered(Dataset[Sample]):
    """Samples that know their number."""

    def __init__(self, num_samples: int) -> None:
        self._x = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(num_samples))

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, number: int) -> Sample:
        return {"number": torch.tensor(number), "x": self._x[number], "y": self._x[number].sum()}


class Files(IterableDataset[Sample]):
    """Six files of three to eight samples, one after another; ``part`` of ``num_parts`` reads every
    so-manieth file."""

    def __init__(self, part: int = 0, num_parts: int = 1) -> None:
        first = [sum(range(3, size)) for size in range(3, 9)]
        files = [range(start, start + size) for start, size in zip(first, range(3, 9), strict=True)]
        self._files, self._samples = files[part::num_parts], Numbered(33)

    def __iter__(self) -> Iterator[Sample]:
        return (self._samples[number] for file in self._files for number in file)


class Sentences(Dataset[Sample]):
    """Four, of 3, 61, 17 and 40 labels: padded, and ignored by the loss where they are."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Sample:
        size = (3, 61, 17, 40)[number]
        draws = torch.Generator().manual_seed(number)
        x, labels = torch.randn(61, 4, generator=draws), torch.randint(0, 5, (61,), generator=draws)
        return {"x": x, "labels": torch.where(torch.arange(61) < size, labels, -100)}


class Ones(Dataset[Sample]):
    """Ten samples, the gradient of each of which is one."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Sample:
        return {"x": torch.ones(1)}


def make_model(kind: str = "linear") -> nn.Module:
    """The same weights whatever was drawn before."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        if kind in ("linear", "sentences", "ones"):
            sizes = {"linear": (4, 1), "sentences": (4, 5), "ones": (1, 1)}
            return nn.Linear(*sizes[kind], bias=kind != "ones")
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1 if kind == "dropout" else 0), nn.Linear(16, 1))


def make_loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The mean over the batch, or over its labels."""
    output = model(batch["x"])
    if "labels" in batch:
        return nn.functional.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
    return nn.functional.mse_loss(output.squeeze(1), batch["y"]) if "y" in batch else output.mean()


class NotedSGD(torch.optim.SGD):
    """Notes the gradient that it steps with."""

    def __init__(self, model: nn.Module, notes: Notes) -> None:
        super().__init__(model.parameters(), lr=0.01)
        self._notes = notes

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        gradients = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        self._notes.write("gradient", values=torch.cat([gradient.flatten() for gradient in gradients]).tolist())
        return loss


def world_size() -> int:
    """Of the launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Notes:
    """Lines of JSON, one file for each process of each launch."""

    def __init__(self, directory: Path, launch: int) -> None:
        # A loader's worker inherits this object, but writes nothing.
        self._path = directory / f"{launch}-{os.environ.get('RANK', '0')}-{os.getpid()}.jsonl"

    def write(self, what: str, **values: Any) -> None:
        """Write one down, so that it outlives this process."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"what": what, **values}) + "\n")

    def trained(self, step: int, epoch: int, numbers: Iterable[int]) -> None:
        """Samples of a step, numbered from 1, that this process computed a gradient of."""
        self.write("trained", step=step, epoch=epoch, numbers=[int(number) for number in numbers])

    def weights(self, model: nn.Module) -> None:
        """Those at the end."""
        self.write("weights", values=torch.cat([p.detach().flatten() for p in model.parameters()]).tolist())

    def evaluated(self, numbers: Iterable[int]) -> None:
        """Samples that an evaluation counted."""
        self.write("evaluated", numbers=[int(number) for number in numbers])


def die_before(step: int, stop: int | None, saved: Path | None = None) -> None:
    """Die as by ``kill -9`` when step ``stop`` + 1 begins, on all ranks, when the checkpoint before
    it is written."""
    if stop is None or step <= stop:
        return
    if dist.is_initialized():
        # the launcher ends the others when the first of them dies, and rank 0 may still be saving
        dist.barrier()
    deadline = time.monotonic() + 30
    while saved is not None and not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


ACCUMULATED = {"sentences": (Sentences, 1), "ones": (Ones, 2)}
"""Data of the task ``accumulate``, and the batch size of a process."""


def run(tasks: Mapping[str, Callable[[argparse.Namespace, Notes], None]]) -> None:
    """Run the task that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(tasks))
    parser.add_argument("--directory", type=Path, default=Path(), help="of checkpoints and notes")
    parser.add_argument("--launch", type=int, default=0, help="number of this launch; all but the first resume")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--model", default="linear")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=1, metavar="STEPS")
    parser.add_argument("--stop", type=int, metavar="STEPS", help="die after so many")
    parser.add_argument("--remedy", action="store_true", help="use what its documentation offers as a remedy")
    args = parser.parse_args()
    (args.directory / "notes").mkdir(exist_ok=True, parents=True)
    torch.set_num_threads(1)
    tasks[args.task](args, Notes(args.directory / "notes", args.launch))
