"""Five scripts for benchmarks/tune.py, three of which wait for their data: python _loaders.py CASE
[STEPS]

``files`` reads and unpacks one file per sample, which computes; ``remote`` waits 2 ms for each
sample, like remote storage; ``uneven`` waits 0.3 ms, and for every 40th sample 40 ms. ``matmul``
computes on tensors in memory; ``fed`` has two workers, which are fast enough for its steps.
"""

from __future__ import annotations

import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import lockstep

BATCH, STEPS = 16, 1000
FILES = Path(tempfile.gettempdir(), "lockstep-benchmark-tune")
NUM_FILES, FILE_FLOATS = 64, 48_128
CASES = {"files": (64, 0), "remote": (64, 0), "uneven": (64, 0), "matmul": (1024, 0), "fed": (1024, 2)}
"""The width of the model, and the script's own number of loader workers, of each case."""


def write_files() -> None:
    """The samples of ``files``."""
    FILES.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for number in range(NUM_FILES):
        pixels = torch.randint(0, 16, (FILE_FLOATS,), generator=generator).float()
        (FILES / f"{number}.z").write_bytes(zlib.compress(pixels.numpy().tobytes(), 6))


class Samples(Dataset[Any]):
    """Samples of one of the cases."""

    def __init__(self, case: str) -> None:
        self.case = case

    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.case == "files":
            data = bytearray(zlib.decompress((FILES / f"{index % NUM_FILES}.z").read_bytes()))
            image = torch.frombuffer(data, dtype=torch.float32).reshape(-1, 64)
            return (image - image.mean()).div(image.std()).sum(0), index % 10
        waits_s = {"remote": 0.002, "uneven": 0.04 if index % 40 == 7 else 0.0003, "fed": 0.0002}[self.case]
        time.sleep(waits_s)
        return torch.full((64,), index / len(self)), index % 10


def make(case: str, team: lockstep.Team, workers: int | None = None, prefetch: int | None = None) -> tuple[Any, Any, Any]:
    """Returns model, optimizer and loader, with ``workers`` and ``prefetch`` instead of the
    script's values."""
    width, own = CASES[case]
    workers = own if workers is None else workers
    model = torch.nn.Sequential(
        torch.nn.Linear(64, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    samples: Dataset[Any] = Samples(case)
    if case == "matmul":
        samples = TensorDataset(torch.rand(BATCH * STEPS, 64), torch.arange(BATCH * STEPS) % 10)
    options = {"prefetch_factor": prefetch} if workers else {}
    loader = DataLoader(samples, BATCH, num_workers=workers, **options)
    return team.prepare(model, optimizer, loader)


def step(team: lockstep.Team, model: Any, optimizer: Any, batch: Any) -> None:
    """One step."""
    for inputs, labels in batch.shards:
        team.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
    optimizer.step()
    optimizer.zero_grad()


def time_epoch(case: str, workers: int | None, prefetch: int | None, seconds: float, run_dir: str) -> float:
    """Seconds of an epoch under some settings: its first step, and so many steps at the speed of
    those after the first ones."""
    with lockstep.join(threads=1, run_dir=run_dir, progress="off", checkpoint_every="off", track="off") as team:
        model, optimizer, loader = make(case, team, workers, prefetch)
        began_s, first_s, timed_s, number = time.perf_counter(), 0.0, 0.0, 0
        warm_up = 5 + (loader.num_workers or 0) * (loader.prefetch_factor or 0)
        for number, batch in enumerate(loader, start=-warm_up):
            now_s = time.perf_counter()
            if number == -warm_up:
                first_s = now_s - began_s
            if number == 0:
                timed_s = now_s
            if number >= 10 and now_s - timed_s >= seconds:
                return first_s + (STEPS - 1) * (now_s - timed_s) / number
            step(team, model, optimizer, batch)
        return first_s + (STEPS - 1) * (time.perf_counter() - timed_s) / number


def main() -> None:
    """The script: an epoch, or some steps of it, and then the digest of its state."""
    case, last = sys.argv[1], int(sys.argv[2]) if sys.argv[2:] else None
    team = lockstep.join(threads=1)
    model, optimizer, loader = make(case, team)
    for _ in team.epochs(1):
        for batch in loader:
            step(team, model, optimizer, batch)
            if team.step == last:
                break
    from lockstep._base.digest import digest

    team.print("digest", digest([model.state_dict(), optimizer.state_dict()]))


if __name__ == "__main__":
    main()
