"""Counts how often the host waits for the device in a step, and on which lines. The goal is
never, and once where values are added to the batch.

A wait for an event is counted separately: it waits for an earlier step, and costs nothing if that
step finished long before.

The profiler sees every wait of CUDA's and counts them; the lines come from PyTorch's warnings,
which do not cover every wait. The simulated device counts both itself.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import lockstep
from gpu.checks.events import WAITS, Profile
from gpu.checks.models import cnn
from gpu.checks.verdict import begin, device_of, finish, make_parser

SIZES = {False: (66, 20), True: (17, 6)}
"""The number of steps before the counted ones, and of counted steps, by whether the check is tiny.
The digest journal reads other steps (16, 32, 64, 100)."""
MOST = {False: 0, True: 1}
"""Waits of a step, by whether it adds a value to its batch, and reads it."""


class Lines:
    """The lines behind warnings, by how often each warned."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = self._add
            yield

    def _add(self, message: Any, *_: Any, **__: Any) -> None:
        if "synchroniz" in str(message):
            own = [frame for frame in traceback.extract_stack()[:-1] if "/torch/" not in frame.filename]
            frame = next((frame for frame in reversed(own) if "warnings.py" not in frame.filename), own[-1])
            self.found[f"{frame.filename}:{frame.lineno} in {frame.name}"] += 1


class Simulated:
    """The simulation's account of the steps that count."""

    def __init__(self) -> None:
        self._library = torch.sim.library  # type: ignore[attr-defined]
        self.waits: Counter[str] = Counter()

    def start(self) -> None:
        """Nothing has to be started."""

    def begin(self) -> None:
        torch.accelerator.synchronize()
        self._library.reset()

    def end(self) -> None:
        self.waits = Counter(self._library.waits())


def run(args: Any, *, reads: bool, watch: Any, lines: bool) -> None:
    """A training whose steps are counted from the beginning of one to that of another."""
    warm, counted = SIZES[args.tiny]
    made = cnn(warm + counted + 2, tiny=args.tiny)
    with lockstep.join(device=args.device, shards=2, progress="off", checkpoint_every="off", log_every=4, seed=1) as team:
        optimizer = torch.optim.SGD(made.model.parameters(), lr=0.001, momentum=0.9)
        batches = (
            made.batches if team.device.type == "cpu" else [tuple(t.pin_memory() for t in pair) for pair in made.batches]
        )
        model, optimizer, loader = team.prepare(made.model, optimizer, batches)
        try:
            for batch in loader:
                if team.step == warm:
                    watch.start()
                if team.step == warm + 1:
                    watch.begin()
                    if lines:
                        torch.cuda.set_sync_debug_mode("warn")
                if team.step == warm + counted + 1:
                    watch.end()
                    if lines:
                        torch.cuda.set_sync_debug_mode("default")
                for images, labels in batch.shards:
                    loss = made.loss(model, (images, labels))
                    team.backward(loss)
                    if reads:
                        batch.add(loss=loss)
                optimizer.step()
                optimizer.zero_grad()
                if reads:
                    team.log(loss=batch["loss"])
        finally:
            if lines:
                torch.cuda.set_sync_debug_mode("default")


def main() -> None:
    args = begin(make_parser(__doc__))
    device = device_of(args.device)
    found: dict[str, Any] = {}
    problems: list[str] = []
    _, counted = SIZES[args.tiny]
    for reads, most in MOST.items():
        profile = Profile(device)
        run(args, reads=reads, watch=profile, lines=False)
        waits, collected = profile.counts(WAITS), Lines()
        if device.type == "sim":
            simulated = Simulated()
            run(args, reads=reads, watch=simulated, lines=False)
            waits, collected.found = simulated.waits, simulated.waits
        else:
            with collected.collecting():
                run(args, reads=reads, watch=Profile(device), lines=device.type == "cuda")
        name = "a value is added and read" if reads else "nothing is read"
        events = sum(count for what, count in waits.items() if "event" in what.lower())
        a_step = (sum(waits.values()) - events) / counted
        found[name] = {
            "waits a step": a_step,
            "for events": events / counted,
            "of": dict(waits),
            "lines": dict(collected.found),
            "steps": counted,
        }
        if a_step > most:
            problems.append(
                f"{name}: the host waits {a_step:.2f} times a step, and should at most {most}: {dict(collected.found)}"
            )
    finish(args, found, problems)


if __name__ == "__main__":
    main()
