"""What the scripts of ``benchmarks/samples.py`` share: their options, data and models, and the notes that they leave."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

Sample = dict[str, torch.Tensor]


class Numbered(Dataset[Sample]):
    """Samples that know their number."""

    def __init__(self, num_samples: int) -> None:
        self._x = torch.randn(num_samples, 4, generator=torch.Generator().manual_seed(num_samples))

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, number: int) -> Sample:
        return {"number": torch.tensor(number), "x": self._x[number], "y": self._x[number].sum()}


def make_model() -> nn.Module:
    """The same weights whatever was drawn before."""
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(0.1)
        model.bias.zero_()
    return model


def make_loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The mean over the batch."""
    return nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])


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

    def evaluated(self, numbers: Iterable[int]) -> None:
        """Samples that an evaluation counted."""
        self.write("evaluated", numbers=[int(number) for number in numbers])


def die_before(step: int, stop: int | None, saved: Path | None = None) -> None:
    """Die as by ``kill -9`` when step ``stop`` + 1 begins, on all ranks, when the checkpoint before it is written."""
    if stop is None or step <= stop:
        return
    if dist.is_initialized():
        dist.barrier()  # the launcher ends the others when the first of them dies, and rank 0 may still be saving
    deadline = time.monotonic() + 30
    while saved is not None and not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def run(tasks: Mapping[str, Callable[[argparse.Namespace, Notes], None]]) -> None:
    """Run the task that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=list(tasks))
    parser.add_argument("--directory", type=Path, default=Path(), help="of checkpoints and notes")
    parser.add_argument("--launch", type=int, default=0, help="number of this launch; all but the first resume")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--global-batch", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=1, metavar="STEPS")
    parser.add_argument("--stop", type=int, metavar="STEPS", help="die after so many")
    args = parser.parse_args()
    (args.directory / "notes").mkdir(exist_ok=True, parents=True)
    torch.set_num_threads(1)
    tasks[args.task](args, Notes(args.directory / "notes", args.launch))
