"""Trains with the strategy ``ddp``, with a GPU for each process, and compares it with ``exact``:
weights are the same on all ranks, and losses are close."""

from __future__ import annotations

import functools
from typing import Any

import lockstep
from gpu.checks.training import train
from gpu.checks.verdict import add_num_devices, begin, finish, make_parser

CLOSE = 0.02
"""Of a loss, from that of ``exact``: some ten times what rounding does to it."""


def main() -> None:
    args = begin(add_num_devices(make_parser(__doc__)))
    settings = {"device": args.device, "threads": 1, "progress": "off", "checkpoint_every": "off", "timeout_s": 60.0}
    script = functools.partial(train, "gpt", 3 if args.tiny else 6, tiny=args.tiny, dropout=0.0)
    found: dict[str, Any] = {}
    problems: list[str] = []
    losses = {}
    for strategy in ("exact", "ddp"):
        ranks = lockstep.launch(script, nproc=args.num_devices, shards=args.num_devices, strategy=strategy, **settings)
        digests = sorted({rank.digest for rank in ranks})
        losses[strategy] = ranks[0].losses
        found[strategy] = {"digests of the ranks": digests, "losses": losses[strategy]}
        print(strategy, found[strategy], flush=True)
        if len(digests) > 1:
            problems.append(f"{strategy}: the ranks of one run have different weights")
    far = max(abs(one - other) / abs(other) for one, other in zip(losses["ddp"], losses["exact"], strict=True))
    found["largest difference of a loss, relative"] = far
    if far > CLOSE:
        problems.append(f"a loss of ddp differs by {far:.1%} from that of exact")
    finish(args, found, problems)


if __name__ == "__main__":
    main()
