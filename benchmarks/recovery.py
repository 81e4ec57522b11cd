"""Measures the time from the death of a process to the next new step: `lockstep run --max-restarts`
compared with `torchrun --max-restarts`.

    python benchmarks/recovery.py                      4 processes, a transformer of 0.5M parameters
    python benchmarks/recovery.py --size 5M --every 20

Both train the same transformer on data of the same kind, with one thread per process, and save
their state every so many steps: lockstep automatically, torchrun's script by hand
(DistributedDataParallel, torch.save on rank 0; all load it after a restart and skip the completed
steps). In each round, each is started once. Then a process is killed (SIGKILL), some steps after
a checkpoint and somewhere within a step, and once the run has recovered, another one. The process
and the moment are drawn again for each round, and are the same for both. The first kill comes
some seconds after the start, as it would in a run of hours.

The result is the time from the kill until rank 0 has completed a step that it had not completed
before, so it includes lost steps that are repeated.

  ratio   seconds to the next new step, lockstep / torchrun
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import _harness as harness
from _crew import WORKERS, clean_environ
from _launch import LOOK_EVERY_S, Launch, Moment

GOAL = 0.4
OURS, PEER = "lockstep", "torchrun"
SIZES = ("0.5M", "5M", "25M")
STAGES = ("all gone", "script begins", "met", "state is back", "first step", "new step")
_FIRST_S, _NEXT_S = 7.0, 2.0
"""Of training before the first kill (lockstep readies itself for restarts after 5 s), and before
the next ones."""


@dataclass(frozen=True)
class Kill:
    """One that was drawn."""

    rank: int
    moment: Moment


@dataclass(frozen=True)
class Recovery:
    """Seconds since the kill until each of the stages, and the number of steps that were taken
    again."""

    reached_s: tuple[float, ...]
    again: int


@contextlib.contextmanager
def started(command: Sequence[str], scratch: Path, notes: Path) -> Iterator[Launch]:
    """A run under one of the launchers. Nothing of it is left after the block."""
    with (scratch / "output").open("w+") as output:
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=scratch, env=clean_environ(), start_new_session=True, **streams)
        launch = Launch([process], output, notes)
        try:
            yield launch
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pid in {note.pid for note in launch.notes()}:
                if _is_alive(pid):
                    os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_once(launch: Launch, kill: Kill, every: int, warm_up_s: float) -> Recovery:
    """Wait for the moment, kill, and wait for the next new step."""
    launch.wait_for(kill.moment, every, warm_up_s)
    pids = {note.pid: note.number for note in launch.notes() if note.what == "began"}
    alive = {pid: rank for pid, rank in pids.items() if _is_alive(pid)}
    victim = next(pid for pid, rank in alive.items() if rank == kill.rank)
    killed_s = time.time()
    os.kill(victim, signal.SIGKILL)
    while any(_is_alive(pid) for pid in alive):
        time.sleep(LOOK_EVERY_S)
    gone_s = time.time()
    best = max(note.number for note in launch.notes() if note.what == "step")
    new = launch.until(lambda notes: [n for n in notes if n.what == "step" and n.number > best])
    since = [note for note in launch.notes() if note.pid == new.pid]
    began, met, ready, first = (
        next(note for note in since if note.what == what) for what in ("began", "met", "ready", "step")
    )
    times = (gone_s, began.time_s, met.time_s, ready.time_s, first.time_s, new.time_s)
    return Recovery(tuple(reached - killed_s for reached in times), best - ready.number)


def command_of(name: str, args: argparse.Namespace, nproc: int, notes: Path) -> list[str]:
    asked = ["--nproc-per-node", str(nproc), "--max-restarts", str(args.kills)]
    if name == OURS:
        saved = ["--shards", str(nproc), "--checkpoint-every", str(args.every)]
        run = [str(Path(sys.executable).with_name("lockstep")), "run", *asked, *saved]
        return [*run, str(WORKERS / "going_on_lockstep.py"), str(notes), args.size, str(nproc)]
    checkpoint = str(notes.with_name("checkpoint.pt"))
    run = [str(Path(sys.executable).with_name("torchrun")), *asked]
    return [*run, str(WORKERS / "going_on_torchrun.py"), str(notes), args.size, checkpoint, str(args.every)]


def run_once(name: str, args: argparse.Namespace, nproc: int, kills: Sequence[Kill]) -> list[Recovery]:
    """Start one, kill it as often, and end it."""
    args.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="recovery-", dir=args.dir) as directory:
        scratch = Path(directory).resolve()
        notes = scratch / "notes"
        with started(command_of(name, args, nproc, notes), scratch, notes) as launch:
            return [
                kill_once(launch, kill, args.every, _NEXT_S if number else _FIRST_S) for number, kill in enumerate(kills)
            ]


def main() -> None:
    parser = harness.make_parser(__doc__ or "", rounds=4)
    parser.add_argument("--nproc", type=int, metavar="N", help="processes (default: 4)")
    parser.add_argument("--kills", type=int, default=2, metavar="N", help="kills of each launch (default: 2)")
    parser.add_argument(
        "--every", type=int, default=25, metavar="K", help="steps from one checkpoint to the next (default: 25)"
    )
    parser.add_argument("--size", choices=SIZES, default=SIZES[0], help=f"of the model (default: {SIZES[0]})")
    parser.add_argument("--dir", type=Path, default=Path("build"), help="where the checkpoints go (default: build)")
    args = parser.parse_args()
    say, rounds = harness.speaker(args), harness.resolve_rounds(args, quick=1)
    nproc = args.nproc or (2 if args.quick else 4)
    machine = harness.machine()
    say(f"{nproc} processes, {args.size} parameters, saved every {args.every} steps, {rounds} rounds of {args.kills} kills")
    drawn = {name: random.Random(0) for name in (OURS, PEER)}
    found: dict[str, list[Recovery]] = {name: [] for name in drawn}

    def turn(name: str) -> Callable[[], float]:
        def run() -> float:
            draw = drawn[name]  # the same numbers for both, in the same order of rounds
            kills = [
                Kill(draw.randrange(nproc), Moment(draw.randint(1, args.every), draw.random())) for _ in range(args.kills)
            ]
            own = run_once(name, args, nproc, kills)
            found[name] += own
            say(f"{name}: {', '.join(f'{one.reached_s[-1]:.2f} s ({one.again} steps again)' for one in own)}")
            return statistics.median(one.reached_s[-1] for one in own)

        return run

    harness.interleave({name: turn(name) for name in drawn}, rounds, say)
    report(args, nproc, rounds, found, machine)


def report(
    args: argparse.Namespace, nproc: int, rounds: int, found: dict[str, list[Recovery]], machine: dict[str, object]
) -> None:
    """The tables and the last line."""
    say = harness.speaker(args)
    timings = {name: [one.reached_s[-1] for one in own] for name, own in found.items()}
    ratio = harness.paired_ratio(timings[OURS], timings[PEER])
    say(f"\nFrom SIGKILL to the next new step:\n{harness.spread_table(timings, 's', {OURS: (PEER, ratio)}, digits=2)}")
    reached = {
        name: [statistics.median(one.reached_s[stage] for one in own) for stage in range(len(STAGES))]
        for name, own in found.items()
    }
    again = {name: statistics.median(one.again for one in own) for name, own in found.items()}
    rows = [[name, *(f"{s:.2f}" for s in reached[name]), f"{again[name]:.0f}"] for name in found]
    say(f"\nSeconds after the kill, medians:\n{harness.table(['contender', *STAGES, 'steps again'], rows)}")
    harness.finish(
        {
            "benchmark": "recovery",
            "goal": GOAL,
            "better": "lower",
            **harness.ratio_fields(ratio),
            "goal_met": ratio.median <= GOAL,
            "medians_s": harness.medians(timings),
            "stages_s": {
                name: {stage: round(s, 3) for stage, s in zip(STAGES, own, strict=True)} for name, own in reached.items()
            },
            "steps_again": again,
            "coverage": round(ratio.coverage, 4),
            "nproc": nproc,
            "size": args.size,
            "every": args.every,
            "kills": args.kills,
            **harness.circumstances(args, rounds, machine),
        }
    )


if __name__ == "__main__":
    main()
