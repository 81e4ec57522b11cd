"""Profiles two steps of a plain loop and of lockstep's, at V = 1 and 2: the slowest operations,
and the launches and waits of the last step. Earlier steps are timed without the profiler.

The plain loop runs the same passes: one over the global batch, and one over each of its halves.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import lockstep
from gpu.checks.events import LAUNCHES, WAITS, Profile
from gpu.checks.models import Batch, cnn
from gpu.checks.verdict import begin, device_of, finish, make_parser, settle
from gpu.stage import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from resnet import make_resnet  # type: ignore[import-not-found]

WARM, TIMED = 20, 11
"""The number of steps before the timed ones, and the number of timed steps."""
PROFILED = WARM + TIMED + 2
"""The step that is profiled; the one before it starts the profiler, and one after it ends it."""


class Watch:
    """A listener that times some steps and profiles a later one."""

    def __init__(self, device: torch.device) -> None:
        self.profile = Profile(device)
        self.times_s: list[float] = []
        """Of the timed steps."""
        self.early_s: list[float] = []
        """Of the steps before them, from the first."""
        self._device = device
        self._step = 0
        self._began = 0.0

    def begin_step(self) -> None:
        self._step += 1
        settle(self._device)
        now = time.perf_counter()
        if 1 < self._step <= WARM + TIMED + 1:
            (self.times_s if self._step > WARM + 1 else self.early_s).append(now - self._began)
        if self._step == PROFILED - 1:
            self.profile.start()
        if self._step == PROFILED:
            self.profile.begin()
        if self._step == PROFILED + 1:
            self.profile.end()
        self._began = time.perf_counter()


def make(tiny: bool, device: torch.device) -> tuple[torch.nn.Module, list[Batch]]:
    """ResNet-50, and batches that are on the device."""
    if tiny:
        small = cnn(1, tiny=True)
        return small.model, small.batches * (PROFILED + 1)
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(64, 3, 128, 128, generator=generator).to(device)
    labels = torch.randint(0, 1000, (64,), generator=generator).to(device)
    torch.manual_seed(0)
    return make_resnet("resnet50", 1000), [(images, labels)] * (PROFILED + 1)


def plain(device: torch.device, num_parts: int, *, tiny: bool, name: str) -> Watch:
    model, batches = make(tiny, device)
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch = Watch(device)
    for images, labels in batches:
        watch.begin_step()
        for part, wanted in zip(images.to(device).chunk(num_parts), labels.to(device).chunk(num_parts), strict=True):
            torch.autograd.backward(cross_entropy(model(part), wanted) / num_parts)
        optimizer.step()
        optimizer.zero_grad()
    return watch


def with_lockstep(device: torch.device, num_parts: int, *, tiny: bool, name: str) -> Watch:
    watch = Watch(device)
    with lockstep.join(device=name, shards=num_parts, progress="off", checkpoint_every="off", threads=1, seed=1) as team:
        model, batches = make(tiny, device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer, loader = team.prepare(model, optimizer, batches)
        for batch in loader:
            watch.begin_step()
            for images, labels in batch.shards:
                loss = cross_entropy(model(images), labels)
                team.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return watch


LOOPS: dict[str, Callable[..., Watch]] = {"plain": plain, "lockstep": with_lockstep}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--traces", type=Path, metavar="DIR", help="for step-LOOP-V.json.gz: ui.perfetto.dev shows them")
    args = begin(parser)
    device = device_of(args.device)
    found: dict[str, Any] = {}
    for num_parts in (1, 2):
        for loop, run in LOOPS.items():
            watch = run(device, num_parts, tiny=args.tiny, name=args.device)
            launches, waits = watch.profile.counts(LAUNCHES), watch.profile.counts(WAITS)
            found[f"{loop}, {num_parts}"] = {
                "seconds a step, median": statistics.median(watch.times_s),
                "seconds of the steps before": [round(seconds, 4) for seconds in watch.early_s],
                "launches": sum(launches.values()),
                "launches by call": dict(launches),
                # The watch itself waits for the device where a step begins: once.
                "waits": dict(waits),
            }
            print(f"{loop}, V = {num_parts}\n{watch.profile.table()}", flush=True)
            if args.traces is not None and loop == "lockstep":
                watch.profile.export(args.traces / f"step-{loop}-{num_parts}.json.gz")
    finish(args, found, [])


if __name__ == "__main__":
    main()
