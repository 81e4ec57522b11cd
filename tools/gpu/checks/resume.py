"""Kills one rank with SIGKILL, resumes the run on half as many processes, and compares the digest
with that of a training that nothing interrupted."""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import lockstep
from gpu.checks.training import DIES_IN, Trained, train
from gpu.checks.verdict import add_num_devices, begin, finish, make_parser
from gpu.machine import said_by
from lockstep._base.errors import LaunchError

STEPS = 8


def train_and_look(device: str, *, tiny: bool) -> tuple[Trained, str]:
    """A rank's script: what it has trained, and the processes on every GPU. (There should be one on
    each: a thread that begins on the first GPU would open a context there.)"""
    trained = train("cnn", STEPS, tiny=tiny)
    listed = ""
    if device == "cuda":
        listed = said_by("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
    return trained, listed


def main() -> None:
    args = begin(add_num_devices(make_parser(__doc__)))
    nproc, half = args.num_devices, max(1, args.num_devices // 2)
    settings = {"device": args.device, "threads": 1, "progress": "off", "checkpoint_every": 1, "timeout_s": 60.0}
    found: dict[str, Any] = {"processes": f"{nproc}, then {half}"}
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        whole = functools.partial(train_and_look, args.device, tiny=args.tiny)
        undisturbed = lockstep.launch(whole, nproc=nproc, shards=nproc, run_dir=f"{scratch}/whole", **settings)
        expected = {trained.digest for trained, _ in undisturbed}
        found["processes by GPU"] = dict(Counter(line.partition(",")[0] for line in undisturbed[0][1].splitlines()))
        run_dir = Path(scratch, "killed")
        script = functools.partial(train, "cnn", STEPS, tiny=args.tiny)
        try:
            lockstep.launch(
                functools.partial(script, dies_after=run_dir / "checkpoints" / "newest"),
                nproc=nproc,
                shards=nproc,
                run_dir=str(run_dir),
                **settings,
            )
            problems.append(f"rank {nproc - 1} was killed, and the launch passed")
        except LaunchError as error:
            found["error"] = str(error)[:2000]
        resumed = lockstep.launch(script, nproc=half, run_dir=str(run_dir), **settings)
    found["digests"] = {"undisturbed": sorted(expected), "resumed": sorted({rank.digest for rank in resumed})}
    found["resumed in step"] = resumed[0].first_step
    if {rank.digest for rank in resumed} != expected or len(expected) != 1:
        problems.append(f"the digests differ: {found['digests']}")
    if not 1 < resumed[0].first_step <= DIES_IN:
        problems.append(f"the run was killed in step {DIES_IN}, and resumed in step {resumed[0].first_step}")
    finish(args, found, problems)


if __name__ == "__main__":
    main()
