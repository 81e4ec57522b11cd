"""Counts which samples killed and resumed runs train on, with lockstep and with other libraries.

    python benchmarks/samples.py

Every column is the shortest script that the library's documentation shows
(``workers/samples/by_*.py``). Every row is a problem from public reports. Each script notes the
samples of which it computes gradients, and a cell is counted from these notes after real runs on
one to four processes. Steps that a resumed run repeats because their weights were lost do not
count twice: a cell states which samples the final weights have seen, and "(20 again)" the amount
of lost work.

  wrong    for each column, the number of rows with a wrong result. The goal for lockstep is 0
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import importlib.metadata
import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _harness as harness
import _references as references
from _samples import PEERS, Job, Peer, RefusedError


@dataclass(frozen=True)
class Cell:
    """What was seen."""

    text: str
    is_right: bool
    because: str = ""
    """The error, where there is one."""


@dataclass(frozen=True)
class Case:
    """Runs that fill one row or more."""

    name: str
    rows: tuple[tuple[str, str], ...]
    """Titles, and what is right."""
    measure: Callable[[Peer, Path], Sequence[str]]
    """Returns the cells of a column, run in a separate directory. Raises RefusedError."""


def twice_and_never(job: Job, num_samples: int, epoch: int = 0) -> str:
    """Of the samples of an epoch; and how many had been trained on before in steps that are
    lost."""
    uses = [job.uses(epoch)[number] for number in range(num_samples)]
    lost = f" ({job.lost()} again)" if job.lost() else ""
    return f"{sum(times > 1 for times in uses)} / {uses.count(0)}{lost}"


def resume(peer: Peer, directory: Path) -> Sequence[str]:
    job = Job(peer, "train", directory, samples=64, global_batch=4)
    job.launch(1, stop=5)
    job.launch(1)
    return twice_and_never(job, 64), str(sum(job.evaluated(launch=1).values()))


def resume_twice(peer: Peer, directory: Path) -> Sequence[str]:
    job = Job(peer, "train", directory, samples=64, global_batch=2, save_every=10)
    job.launch(1, stop=10)
    job.launch(1, stop=20)
    job.launch(1)
    return [twice_and_never(job, 64)]


def resume_after_an_epoch(peer: Peer, directory: Path) -> Sequence[str]:
    job = Job(peer, "train", directory, samples=64, global_batch=4, epochs=2)
    job.launch(2, stop=16)
    job.launch(2)
    first, second = job.batches(epoch=0), job.batches(epoch=1)
    return twice_and_never(job, 64, epoch=1), str(sum(one == other for one, other in zip(first, second, strict=False)))


def resume_elsewhere(nproc: int) -> Callable[[Peer, Path], Sequence[str]]:
    def measure(peer: Peer, directory: Path) -> Sequence[str]:
        found = []
        for workers in (0, 2):
            job = Job(peer, "train", directory / f"workers-{workers}", samples=40, global_batch=6, workers=workers)
            job.launch(2, stop=3)
            job.launch(nproc)
            found.append(twice_and_never(job, 40))
        return [found[0] if found[0] == found[1] else f"{found[0]}; with workers {found[1]}"]

    return measure


def cut_off(peer: Peer, directory: Path) -> Sequence[str]:
    job = Job(peer, "train", directory, samples=16, global_batch=4, epochs=3, save_every=4)
    job.launch(1, stop=4)
    job.launch(1, stop=8)
    job.cut_newest()
    job.launch(1)
    return [f"step {min(note.values['step'] for note in job.notes('trained') if note.launch == 2) - 1}"]


def tokens(peer: Peer, directory: Path) -> Sequence[str]:
    job = Job(peer, "accumulate", directory, model="sentences")
    job.launch(2)
    right = references.gradient_of_sentences()
    seen = job.notes("gradient")[0].values["values"]
    return [f"{100 * math.dist(seen, right) / math.hypot(*right):.0f} %"]


def window(peer: Peer, directory: Path) -> Sequence[str]:
    job = Job(peer, "accumulate", directory, model="ones")
    job.launch(1)
    norms = [f"{abs(note.values['values'][0]):g}" for note in job.notes("gradient")]
    return [", ".join([*norms, "–", "–", "–"][:3])]


def evaluation(peer: Peer, directory: Path) -> Sequence[str]:
    few = Job(peer, "evaluate", directory / "few", samples=9)
    few.launch(2)
    many = Job(peer, "evaluate", directory / "many", samples=499)
    many.launch(4)
    off = abs(references.roc_auc(many.evaluated()) - references.roc_auc(Counter(range(499))))
    return str(sum(few.evaluated().values())), f"{off:.1g}"


def stream(peer: Peer, directory: Path) -> Sequence[str]:
    job = Job(peer, "stream", directory)
    job.launch(2)
    return [twice_and_never(job, 33)]


def scale(peer: Peer, directory: Path) -> Sequence[str]:
    found = []
    for model in ("mlp", "dropout"):
        weights = []
        for nproc in (1, 2):
            job = Job(peer, "train", directory / f"{model}-{nproc}", samples=400, global_batch=8, model=model)
            job.launch(nproc)
            weights.append(job.notes("weights")[0].values["values"])
        found.append(f"{max(abs(one - other) for one, other in zip(*weights, strict=True)):.0e}".replace("0e+00", "0"))
    return found


CASES = (
    Case(
        "resume",
        (("killed after 20 of 64, resumed: seen twice / never", "0 / 0"), ("the validation after it: samples of 24", "24")),
        resume,
    ),
    Case("resume-twice", (("killed after 20 of 64, again 20 later: seen twice / never", "0 / 0"),), resume_twice),
    Case(
        "to-1", (("killed after 18 of 40 on 2 processes, resumed on 1: seen twice / never", "0 / 0"),), resume_elsewhere(1)
    ),
    Case(
        "to-3", (("killed after 18 of 40 on 2 processes, resumed on 3: seen twice / never", "0 / 0"),), resume_elsewhere(3)
    ),
    Case(
        "epoch-end",
        (
            ("killed at an epoch's end, resumed: seen twice / never in the next", "0 / 0"),
            ("its batches that the epoch before had, of 16", "0"),
        ),
        resume_after_an_epoch,
    ),
    Case("cut-off", (("the checkpoint of step 8 is cut off: resumes after", "step 4"),), cut_off),
    Case("tokens", (("3, 61, 17 and 40 labels on 2 processes x 2 batches: error of the gradient", "0 %"),), tokens),
    Case("window", (("5 batches, 2 a step: norms of the gradients, each sample's being 1", "1, 1, 1"),), window),
    Case(
        "evaluation",
        (("evaluation on 2 processes: samples counted of 9", "9"), ("ROC-AUC of 499 on 4 processes: wrong by", "0")),
        evaluation,
    ),
    Case("stream", (("6 files of 3 to 8 samples on 2 processes: seen twice / never", "0 / 0"),), stream),
    Case(
        "scale",
        (
            ("2 processes against 1: largest difference of weights after 50 steps", "0"),
            ("the same with dropout", "0"),
        ),
        scale,
    ),
)


REMEDIES = (
    ("accelerate", "resume", "`use_seedable_sampler=True`"),
    ("accelerate", "tokens", "its recipe for samples of variable size"),
    ("Lightning", "resume", "a `StatefulDataLoader`"),
    ("DDP", "stream", "`with model.join():`"),
)
"""Column, case, and what that library's documentation offers."""


def measure(case: Case, peer: Peer, directory: Path) -> list[Cell]:
    """Returns the cells of one column, from an earlier run in the directory if there are any."""
    kept = directory / "cells.json"
    if kept.exists():
        return [Cell(**fields) for fields in json.loads(kept.read_text(encoding="utf-8"))]
    shutil.rmtree(directory, ignore_errors=True)  # of a run that was interrupted
    try:
        texts = case.measure(peer, directory)
    except RefusedError as error:
        found = [Cell("error", is_right=False, because=str(error))] * len(case.rows)
    else:
        found = [Cell(text, text.partition(" (")[0] == right) for text, (_, right) in zip(texts, case.rows, strict=True)]
    kept.write_text(json.dumps([dataclasses.asdict(cell) for cell in found]), encoding="utf-8")
    return found


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


def remedied(cases: Sequence[Case], peers: Sequence[Peer]) -> list[tuple[Case, Peer]]:
    """What is measured again with a remedy."""
    return [
        (case, dataclasses.replace(peer, remedy=remedy))
        for name, about, remedy in REMEDIES
        for case in cases
        for peer in peers
        if (peer.name, case.name) == (name, about)
    ]


def measure_all(
    planned: Sequence[tuple[Case, Peer]], root: Path, at_a_time: int, say: Callable[[str], None]
) -> dict[tuple[str, Peer], list[Cell]]:
    """The cells of each case and column, some at a time."""
    cells: dict[tuple[str, Peer], list[Cell]] = {}
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        running = {}
        for case, peer in planned:
            if lacking := missing(peer):
                because = f"{', '.join(lacking)} is not installed"
                cells[case.name, peer] = [Cell("–", is_right=False, because=because)] * len(case.rows)
            else:
                where = root / case.name / (peer.script.removesuffix(".py") + ("-remedied" if peer.remedy else ""))
                running[pool.submit(measure, case, peer, where)] = (case, peer)
        for done, future in enumerate(concurrent.futures.as_completed(running), start=1):
            case, peer = running[future]
            found = cells[case.name, peer] = future.result()
            shown = "; ".join(cell.text for cell in found)
            say(f"[{done}/{len(running)}] {case.name}, {peer.name}: {shown} {found[0].because} {peer.remedy}".rstrip())
    return cells


def write(page: Path, name: str, table: str) -> None:
    """Replace the table between the page's marks of that name."""
    begin, end = (f"<!-- {name}: {mark} -->" for mark in ("begin", "end"))
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ends, after = rest.partition(end)
    if not (found and ends):
        raise SystemExit(f"{page} lacks the marks {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{table}\n\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", metavar="NAMES", help="only these, with commas between them")
    parser.add_argument("--peers", metavar="NAMES", help="only these columns, with commas between them")
    parser.add_argument("--at-a-time", type=int, default=2, metavar="N", help="cases measured at a time (default: 2)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the tables into this page, between its marks")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep all files here, and measure only what is not here yet"
    )
    parser.add_argument("--quick", action="store_true", help="one case of lockstep: see that it runs")
    parser.add_argument("--json", action="store_true", help="print the last line only")
    args = parser.parse_args()
    say, machine = harness.speaker(args), harness.machine()
    cases = choose(parser, "resume" if args.quick else args.cases, CASES)
    peers = choose(parser, "lockstep" if args.quick else args.peers, PEERS)
    again = remedied(cases, peers)
    with tempfile.TemporaryDirectory() as scratch:
        root = (args.keep or Path(scratch)).resolve()
        planned = [*((case, peer) for case in cases for peer in peers), *again]
        cells = measure_all(planned, root, args.at_a_time, say)
    rows = {
        title: {"right": right, **{peer.name: cells[case.name, peer][number].text for peer in peers}}
        for case in cases
        for number, (title, right) in enumerate(case.rows)
    }
    shown = [[title, *columns.values()] for title, columns in rows.items()]
    tables = {"samples": harness.table(["", "right", *(peer.name for peer in peers)], shown)}
    with_remedies = [[peer.name, peer.remedy, case.rows[0][0], cells[case.name, peer][0].text] for case, peer in again]
    if again:
        tables["remedies"] = harness.table(["", "remedy", "row", "seen"], with_remedies)
    for name, table in tables.items():
        say("\n" + table)
        if args.write:
            write(args.write, name, table)
    errors = {f"{name}, {peer.name}": found[0].because for (name, peer), found in cells.items() if found[0].because}
    say("".join(f"\n{where}: {because}" for where, because in errors.items()))
    wrong = {peer.name: sum(not cell.is_right for case in cases for cell in cells[case.name, peer]) for peer in peers}
    harness.finish(
        {
            "benchmark": "samples",
            "quick": args.quick,
            "better": "lower",
            "goal": 0,
            "goal_met": not any(count for name, count in wrong.items() if "lockstep" in name),
            "wrong": wrong,
            "rows": rows,
            "remedies": with_remedies,
            "errors": errors,
            "versions": harness.versions(sorted({name for peer in peers for name in peer.distributions})),
            "machine": machine,
        }
    )


if __name__ == "__main__":
    main()
