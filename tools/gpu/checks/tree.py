"""Checks the fixed tree on a GPU: the same digest for V = 2 and for V = 4, twice on one process,
and on two processes that share the GPU.

Two things can be compared with the CPU: the samples of each shard (equal), and the loss of the
first step without dropout (close, since a GPU multiplies in another order, and computes
convolutions in TF32). Digests and random draws cannot be compared: they differ between kinds of
devices."""

from __future__ import annotations

import functools
from typing import Any

import lockstep
from gpu.checks.training import Trained, train
from gpu.checks.verdict import begin, finish, make_parser

CLOSE = 0.02
"""Of the first loss, from the CPU's: some ten times what TF32 does to it."""


def main() -> None:
    args = begin(make_parser(__doc__))
    steps = 3 if args.tiny else 6
    found: dict[str, Any] = {}
    problems: list[str] = []

    def run(nproc: int, shards: int, device: str, dropout: float = 0.2) -> Trained:
        # Several processes share one GPU only over Gloo. ("auto": a simulated device, of which
        # each has one.)
        backend = "gloo" if nproc > 1 and device != "auto" else "auto"
        settings: dict[str, Any] = {"device": device, "backend": backend, "timeout_s": 60.0}
        settings |= {"threads": 1, "progress": "off", "checkpoint_every": "off"}
        script = functools.partial(train, "cnn", steps, tiny=args.tiny, dropout=dropout)
        ranks = lockstep.launch(script, nproc=nproc, shards=shards, **settings)
        if len({rank.digest for rank in ranks}) > 1:
            problems.append(f"V = {shards}: the ranks of one run have different weights: {[rank.digest for rank in ranks]}")
        return ranks[0]

    for shards in (2, 4):
        one, again, two = (run(nproc, shards, args.device) for nproc in (1, 1, 2))
        found[f"V = {shards}"] = {"W = 1": one.digest, "W = 1 again": again.digest, "W = 2": two.digest}
        print(found, flush=True)
        if one.digest != again.digest:
            problems.append(f"V = {shards}: two runs on one process differ, from step {first_difference(one, again)} on")
        elif one.digest != two.digest:
            problems.append(f"V = {shards}: one process and two differ, from step {first_difference(one, two)} on")
    here, on_cpu = run(1, 2, args.device, dropout=0.0), run(1, 2, "cpu", dropout=0.0)
    far = abs(here.losses[0] - on_cpu.losses[0]) / abs(on_cpu.losses[0])
    found["compared with the CPU"] = {"device": here.device, "same samples": here.samples == on_cpu.samples}
    found["compared with the CPU"] |= {"losses": here.losses, "losses of the CPU": on_cpu.losses, "first, relative": far}
    if here.samples != on_cpu.samples:
        problems.append("shards have other samples than on the CPU")
    if far > CLOSE:
        problems.append(
            f"the first loss is {here.losses[0]:.5f}, and {on_cpu.losses[0]:.5f} on the CPU: further off than {CLOSE:.0%}"
        )
    finish(args, found, problems)


def first_difference(one: Trained, other: Trained) -> int | str:
    """The first step, from 1, whose losses differ: the weights may have before, in the last
    step."""
    steps = enumerate(zip(one.losses, other.losses, strict=True), 1)
    return next((step for step, (left, right) in steps if left != right), "the last")


if __name__ == "__main__":
    main()
