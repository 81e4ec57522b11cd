"""Checks several machines: ``lockstep doctor`` over all of them, then a training with one process
per machine and with one per GPU, whose digests must be the same, also on the first machine alone.
Reports how much each network interface sent in a step, and keeps NCCL's own log.

The same command runs on every machine, with its ``--node-rank``. This clone must be in a directory
that all of them see. They wait for each other for up to two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu.checks.verdict import add_num_devices, begin, finish, make_parser
from gpu.stage import ROOT

LOCKSTEP = (sys.executable, "-m", "lockstep._cli.main")
WAITS_S = 120
TOLD = re.compile(r"NCCL version|NET/|via |Channel 00|Trees|Using network|NCCL_\w+ set")
"""Lines of NCCL's log that the report has; the log itself is kept next to it."""
LINES = 40


def add_options(parser: argparse.ArgumentParser) -> None:
    add_num_devices(parser)
    parser.add_argument("--nnodes", type=int, required=True, metavar="N", help="number of machines")
    parser.add_argument("--node-rank", type=int, required=True, metavar="R", help="rank of this machine, from 0")
    parser.add_argument("--master-addr", required=True, metavar="HOST", help="the first machine, as all others reach it")
    parser.add_argument("--master-port", type=int, default=29500, metavar="PORT", help="the first of three free ports there")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory for NCCL's log")


class Machines:
    """The commands that all machines run, one after the other.

    Args:
        args: of the check.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        # The launchers of the others read the secret of a launch in this directory.
        self._shared = ROOT / "build" / "gpu" / f"hosts-{args.master_addr}-{args.master_port}"
        self._shared.mkdir(parents=True, exist_ok=True)
        log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(args.out / "nccl-%h-%p.log")}
        self._environ = {**os.environ, **(log if args.device == "cuda" else {})}

    def doctor(self) -> tuple[int, str]:
        """The status of ``lockstep doctor``, and what it printed: on the first machine, all."""
        words = ["doctor", *self._of_launch(0, self._args.num_devices)]
        done = subprocess.run(
            [*LOCKSTEP, *words], env=self._environ, cwd=self._shared, stdout=subprocess.PIPE, text=True, check=False
        )
        print(done.stdout, flush=True)
        return done.returncode, done.stdout

    def train(self, number: int, nproc: int, *, alone: bool = False) -> dict[str, Any]:
        """What ``gpu.checks.on_hosts`` found, with so many processes on each machine (or on this
        one alone)."""
        found = self._args.out / f"on-hosts-{number}-{self._args.node_rank}.json"
        found.unlink(missing_ok=True)
        where = ["--nproc-per-node", str(nproc), *self._device()] if alone else self._of_launch(number, nproc)
        shards = ["--shards", str(self._args.nnodes * self._args.num_devices)]
        script = ["-m", "gpu.checks.on_hosts", "--found", str(found), *(["--tiny"] if self._args.tiny else [])]
        command = [*LOCKSTEP, "run", *where, *shards, *script]
        # under srun, a launch on this machine alone would be one of several copies
        kept = {name: value for name, value in self._environ.items() if not (alone and name.startswith("SLURM_"))}
        done = subprocess.run(command, env=kept, cwd=self._shared, check=False)
        result: dict[str, Any] = json.loads(found.read_text()) if found.exists() else {}
        result["status"] = done.returncode
        return result

    def _of_launch(self, number: int, nproc: int) -> list[str]:
        args = self._args
        nodes = ["--nnodes", str(args.nnodes), "--node-rank", str(args.node_rank), "--master-addr", args.master_addr]
        # a port of its own for each launch: on a slow machine, the one before may not have ended
        port = ["--master-port", str(args.master_port + number), "--timeout", str(WAITS_S)]
        return [*nodes, *port, "--nproc-per-node", str(nproc), *self._device()]

    def _device(self) -> list[str]:
        return ["--device", self._args.device]


def main() -> None:
    parser = make_parser(__doc__)
    add_options(parser)
    args = begin(parser)
    if args.node_rank == 0:
        others = f"1 to {args.nnodes - 1}" if args.nnodes > 2 else "1"
        on = "" if args.device == "cuda" else f" --device {args.device}"
        print(
            f"now run on the other machine(s), with --node-rank {others}:\n  {sys.executable} {ROOT / 'tools' / 'gpu'}{on} "
            f"--stage hosts --nnodes {args.nnodes} --node-rank 1 --master-addr {args.master_addr} "
            f"--master-port {args.master_port}\nwaiting for up to {WAITS_S} s",
            flush=True,
        )
    machines, problems = Machines(args), list[str]()
    status, said = machines.doctor()
    found: dict[str, Any] = {"doctor": {"status": status, "output": said.splitlines()}}
    if status:
        finish(args, found, ["lockstep doctor failed"])
    launches = {"one process a machine": machines.train(1, 1), "all GPUs": machines.train(2, args.num_devices)}
    if args.node_rank == 0:
        launches["this machine alone"] = machines.train(3, args.num_devices, alone=True)
    found |= launches
    problems += [f"{name}: status {launch['status']}" for name, launch in launches.items() if launch["status"]]
    digests = {digest for launch in launches.values() for digest in launch.get("digests", ())}
    if len(digests) > 1:
        problems.append("the digests differ")
    log = [
        line for path in sorted(args.out.glob("nccl-*.log"))[:1] for line in path.read_text(errors="replace").splitlines()
    ]
    found["NCCL's log"] = [line for line in log if TOLD.search(line)][:LINES]
    finish(args, found, problems)


if __name__ == "__main__":
    main()
