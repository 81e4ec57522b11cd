"""The contenders of ``instructions.py``, which runs this under callgrind.

    python benchmarks/workers/counted.py CASES --first N --steps N --library FILE --dir DIR

Each case, ``lockstep-8`` or ``by-hand-8`` say, is a fork of this process: what is imported, which
takes long under callgrind, is imported once. It trains the model of ``loop.py`` on samples that are
fetched one by one, with so many shards, or micro-batches. After the first steps callgrind counts,
and writes a sum for each of the others. A line "CASE PID" tells which process wrote whose.
``library`` is made of ``counted.c``.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import traceback

import shard_loops
import torch
from loop import Samples, make_model
from torch.utils.data import DataLoader

import lockstep

BATCH = 32


class Counted:
    """Called after every step. Ends the process after the last."""

    def __init__(self, library: str, first: int, steps: int) -> None:
        self._callgrind = ctypes.CDLL(library)
        self._num_before, self._num_left = first, steps

    def __call__(self) -> None:
        if self._num_before:
            self._num_before -= 1
            if not self._num_before:
                self._callgrind.begin()
            return
        self._callgrind.mark()
        self._num_left -= 1
        if not self._num_left:
            self._callgrind.end()
            os._exit(0)  # before a run's end, which is not counted


def train(who: str, shards: int, counted: Counted, num_steps: int, run_dir: str) -> None:
    torch.manual_seed(0)
    num_samples = num_steps * BATCH
    data = Samples(torch.randn(num_samples, 64), torch.randint(0, 10, (num_samples,)))
    loader = DataLoader(data, BATCH, shuffle=True)
    model, optimizer = make_model([64])
    if who == "lockstep":
        team = lockstep.join(threads=1, progress="off", run_dir=run_dir, shards=shards)
        model, optimizer, loader = team.prepare(model, optimizer, loader)
        for _ in team.epochs(1):
            shard_loops.shards(team, model, optimizer, loader, counted)
    elif shards == 1:
        shard_loops.whole_batches(model, optimizer, loader, counted)
    else:
        shard_loops.micro_batches(model, optimizer, loader, shards, counted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", help="with commas")
    parser.add_argument("--first", type=int, required=True, help="steps that are not counted")
    parser.add_argument("--steps", type=int, required=True, help="steps that are")
    parser.add_argument("--library", required=True)
    parser.add_argument("--dir", required=True, help="where lockstep keeps its runs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for case in args.cases.split(","):
        pid = os.fork()
        if not pid:
            try:
                who, _, shards = case.rpartition("-")
                counted = Counted(args.library, args.first, args.steps)
                # some steps more: the last one of a pass has its end
                train(who, int(shards), counted, args.first + args.steps + 5, f"{args.dir}/{case}")
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{case} failed")
        # Standard output is another's: see turns.py, which loop.py imports.
        print(case, pid, file=sys.stderr)


if __name__ == "__main__":
    main()
