"""What happens to your samples: runs that are killed and resumed, with lockstep and with its peers.

    python benchmarks/samples.py

Every column is the shortest script that the library's own documentation shows (``workers/samples/by_*.py``), every row
something that public reports complain of. Each script notes which samples it computes gradients of; a cell is counted from
these notes after real runs on one to four processes. Steps that a resumed run repeats because their weights were lost do not
count twice: a cell says what the weights at the end have seen.

  wrong_*    rows in which that column is not right
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.metadata
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness as harness
from _samples import PEERS, Job, Peer, RefusedError


@dataclass(frozen=True)
class Cell:
    """What was seen."""

    text: str
    is_right: bool
    because: str = ""
    """The error, where there is one."""


@dataclass(frozen=True)
class Row:
    """One thing that goes wrong."""

    name: str
    title: str
    right: str
    measure: Callable[[Peer, Path], str]
    """Runs it in a directory of its own. Raises RefusedError."""


def twice_and_never(job: Job, num_samples: int, epoch: int = 0) -> str:
    """Of the samples of an epoch."""
    uses = [job.uses(epoch)[number] for number in range(num_samples)]
    return f"{sum(times > 1 for times in uses)} / {uses.count(0)}"


def resume(peer: Peer, directory: Path) -> str:
    job = Job(peer, "train", directory, samples=64, global_batch=4)
    job.launch(1, stop=5)
    job.launch(1)
    return twice_and_never(job, 64)


def resume_twice(peer: Peer, directory: Path) -> str:
    job = Job(peer, "train", directory, samples=64, global_batch=2)
    job.launch(1, stop=15)
    job.launch(1, stop=20)
    job.launch(1)
    return twice_and_never(job, 64)


def resume_at_the_end(peer: Peer, directory: Path) -> str:
    job = Job(peer, "train", directory, samples=64, global_batch=4, epochs=2)
    job.launch(1, stop=16)
    job.launch(1)
    first, second = twice_and_never(job, 64), twice_and_never(job, 64, epoch=1)
    return second if first == "0 / 0" else f"{first}, then {second}"


def resume_elsewhere(nproc: int) -> Callable[[Peer, Path], str]:
    def measure(peer: Peer, directory: Path) -> str:
        found = []
        for workers in (0, 2):
            job = Job(peer, "train", directory / f"workers-{workers}", samples=40, global_batch=6, workers=workers)
            job.launch(2, stop=3)
            job.launch(nproc)
            found.append(twice_and_never(job, 40))
        return found[0] if len(set(found)) == 1 else f"{found[0]}; {found[1]} with loader workers"

    return measure


ROWS = (
    Row("resume", "killed after 20 of 64, resumed", "0 / 0", resume),
    Row("resume-twice", "killed after 30 of 64, and again after 10 more", "0 / 0", resume_twice),
    Row("epoch-end", "killed at the end of an epoch: the next one", "0 / 0", resume_at_the_end),
    Row("to-1", "killed after 18 of 40 on 2 processes, resumed on 1", "0 / 0", resume_elsewhere(1)),
    Row("to-3", "killed after 18 of 40 on 2 processes, resumed on 3", "0 / 0", resume_elsewhere(3)),
)


def measure(row: Row, peer: Peer, directory: Path) -> Cell:
    """One cell."""
    try:
        text = row.measure(peer, directory)
    except RefusedError as error:
        return Cell("error", is_right=False, because=str(error))
    return Cell(text, text == row.right)


def missing(peer: Peer) -> list[str]:
    """What a column needs and this environment lacks."""
    lacking = []
    for name in peer.distributions:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            lacking.append(name)
    return lacking


def choose(parser: argparse.ArgumentParser, names: str | None, found: tuple[Any, ...]) -> list[Any]:
    """Those with these names, or all."""
    if names is None:
        return list(found)
    by_name = {one.name: one for one in found}
    if unknown := [name for name in names.split(",") if name not in by_name]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(by_name)}")
    return [by_name[name] for name in names.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", metavar="NAMES", help="only these, with commas between them")
    parser.add_argument("--peers", metavar="NAMES", help="only these columns, with commas between them")
    parser.add_argument("--at-a-time", type=int, default=2, metavar="N", help="cells measured at a time (default: 2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was printed, checkpoints and notes here")
    parser.add_argument("--quick", action="store_true", help="one row of lockstep: see that it runs")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    say, machine = harness.speaker(args), harness.machine()
    rows = choose(parser, "resume" if args.quick else args.rows, ROWS)
    peers = choose(parser, "lockstep" if args.quick else args.peers, PEERS)
    cells: dict[tuple[str, str], Cell] = {}
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(args.at_a_time) as pool:
        root = (args.keep or Path(scratch)).resolve()
        running = {}
        for row in rows:
            for peer in peers:
                if lacking := missing(peer):
                    cells[row.name, peer.name] = Cell("not installed", is_right=False, because=f"no {', '.join(lacking)}")
                else:
                    where = root / row.name / peer.script.removesuffix(".py")
                    running[pool.submit(measure, row, peer, where)] = (row, peer)
        for done, future in enumerate(concurrent.futures.as_completed(running), start=1):
            row, peer = running[future]
            cell = cells[row.name, peer.name] = future.result()
            say(f"[{done}/{len(running)}] {row.name}, {peer.name}: {cell.text} {cell.because}".rstrip())
    shown = [[row.title, row.right, *(cells[row.name, peer.name].text for peer in peers)] for row in rows]
    say("\n" + harness.table(["seen twice / never", "right", *(peer.name for peer in peers)], shown))
    harness.finish(
        {
            "benchmark": "samples",
            "quick": args.quick,
            "better": "lower",
            "goal": 0,
            "goal_met": all(cells[row.name, "lockstep"].is_right for row in rows if ("lockstep" in {p.name for p in peers})),
            "wrong": {peer.name: sum(not cells[row.name, peer.name].is_right for row in rows) for peer in peers},
            "cells": {row.name: {peer.name: cells[row.name, peer.name].text for peer in peers} for row in rows},
            "versions": harness.versions(sorted({name for peer in peers for name in peer.distributions})),
            "machine": machine,
        }
    )


if __name__ == "__main__":
    main()
