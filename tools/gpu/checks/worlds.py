"""Checks that a training has the same digest on 1, 2, 4 and 8 processes with a GPU each: a CNN with
BatchNorm and dropout, and a GPT."""

from __future__ import annotations

import functools
from typing import Any

import lockstep
from gpu.checks.training import train
from gpu.checks.verdict import add_num_devices, begin, finish, make_parser


def main() -> None:
    parser = add_num_devices(make_parser(__doc__))
    parser.add_argument("--strategy", choices=("exact", "fsdp"), default="exact", help="strategy (default: exact)")
    parser.add_argument("--most", type=int, metavar="W", default=8, help="the most processes (default: 8)")
    parser.add_argument("--shards", type=int, metavar="V", help="number of shards (default: that of processes)")
    args = begin(parser)
    settings = {"device": args.device, "threads": 1, "progress": "off", "checkpoint_every": "off", "timeout_s": 60.0}
    worlds = [nproc for nproc in (1, 2, 4, 8) if nproc <= min(args.num_devices, args.most)]
    shards = args.shards or worlds[-1]
    found: dict[str, Any] = {}
    problems: list[str] = []
    for task in ("cnn", "gpt"):
        script = functools.partial(train, task, 3 if args.tiny else 6, tiny=args.tiny)
        digests = {}
        for nproc in worlds:
            ranks = lockstep.launch(script, nproc=nproc, shards=shards, strategy=args.strategy, **settings)
            digests[f"W = {nproc}"] = sorted({rank.digest for rank in ranks})
            print(task, digests, flush=True)
        found[f"{task}, {args.strategy}, V = {shards}"] = digests
        if len({digest for ranks in digests.values() for digest in ranks}) > 1:
            problems.append(f"{task}, {args.strategy}, V = {shards}: the digests differ")
    finish(args, found, problems)


if __name__ == "__main__":
    main()
