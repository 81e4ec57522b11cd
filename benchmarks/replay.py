"""Replays random steps of the examples' runs on one process, and checks that they are
bit-identical.

    python benchmarks/replay.py [--pairs 100] [--blames 20]

Runs of digits.py, gan.py and transformer.py on one to four processes, with shards, accumulation,
loader workers and 16-mixed, half of them killed once and resumed. Random steps of each are replayed
on one process.

  equal    the number of pairs (run, step) for which the replay's digests equal the run's digests.
           The goal is all
  named    the number of runs with one sample that makes a NaN, or a spike, for which --blame
           named that sample and no other. The goal is all
  ratio    the time of the replay's steps / the time of the same steps in training, both on one
           process. The goal is 1.1
"""

from __future__ import annotations

import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import _harness as harness
from _crew import clean_environ

from lockstep._events.history import read_events
from lockstep._tools.replay.digests import DIRECTORY, read_digests
from lockstep._tools.verify.trace.lines import file_of

EXAMPLES = Path(__file__).parents[1] / "examples"
LOCKSTEP = str(Path(sys.executable).with_name("lockstep"))
EVERY = 5
"""Steps between lines of the digest journals, which have times."""


@dataclass(frozen=True)
class Case:
    """One run."""

    name: str
    nproc: int
    options: tuple[str, ...]
    program: tuple[str, ...]
    is_killed: bool = False


CASES = (
    Case("digits-1", 1, (), ("digits.py", "--epochs", "3")),
    Case("digits-3", 3, (), ("digits.py", "--epochs", "2"), is_killed=True),
    Case("digits-4-accumulate-workers", 4, ("--accumulate", "2"), ("digits.py", "--epochs", "4", "--workers", "1")),
    Case("digits-2-16-mixed", 2, ("--precision", "16-mixed"), ("digits.py", "--epochs", "1"), is_killed=True),
    Case("gan-2", 2, (), ("gan.py", "--epochs", "2"), is_killed=True),
    Case("transformer-1", 1, (), ("transformer.py", "--epochs", "1")),
    Case("transformer-4", 4, (), ("transformer.py", "--epochs", "1"), is_killed=True),
)


def train(case: Case, place: Path) -> Path:
    """Train to the end; returns the run's directory."""
    run_dir = place / "runs" / case.name
    command = [LOCKSTEP, "run", "--nproc-per-node", str(case.nproc), "--threads", "1"]
    command += ["--checkpoint-every", "20", "--keep", "100", "--journal-every", str(EVERY), "--run-dir", str(run_dir)]
    command += [*case.options, str(EXAMPLES / case.program[0]), *case.program[1:]]
    if case.is_killed:
        with subprocess.Popen(
            command, cwd=place, env=clean_environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as run:
            while run.poll() is None and not (run_dir / "checkpoints" / "newest").exists():
                time.sleep(0.02)
            run.send_signal(signal.SIGKILL)
    subprocess.run(command, cwd=place, env=clean_environ(), check=True, capture_output=True)
    return run_dir


def replay(run_dir: Path, step: int, place: Path) -> tuple[bool, Path]:
    """Whether a replay was the run's step, and its directory."""
    command = [LOCKSTEP, "replay", str(run_dir), "--step", str(step), "--json"]
    done = subprocess.run(command, cwd=place, env=clean_environ(), capture_output=True, text=True)
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(done.stdout + done.stderr)
    found = json.loads(done.stdout)
    is_whole = found["compared"] is not None and step in found["compared"]["steps"]
    return found["verdict"] == "equal" and is_whole, Path(found["directory"])


SPOILED = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lockstep

kind, culprit = sys.argv[1], int(sys.argv[2])
team = lockstep.join()
inputs = torch.randn(1024, 16, generator=torch.Generator().manual_seed(0))
targets = inputs.sum(1, keepdim=True)
if kind == "nan":
    inputs[culprit, 3] = torch.nan
else:
    targets[culprit] *= 1000
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(inputs, targets), 64, shuffle=True)
model, optimizer, loader = team.prepare(model, optimizer, loader)
for batch in loader:
    for x, y in batch.shards:
        loss = nn.functional.mse_loss(model(x), y)
        team.backward(loss)
    team.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
"""A training of 16 steps on 1024 samples, one of them spoiled: ``KIND INDEX``."""


def is_named(kind: str, culprit: int, nproc: int, place: Path) -> bool:
    """Whether ``--blame`` names the spoiled sample of a run, and no other."""
    script, run_dir = place / "spoiled.py", place / "runs" / f"{kind}-{culprit}"
    script.write_text(SPOILED)
    command = [LOCKSTEP, "run", "--nproc-per-node", str(nproc), "--threads", "1", "--checkpoint-every", "5"]
    command += ["--keep", "100", "--run-dir", str(run_dir), str(script), kind, str(culprit)]
    subprocess.run(command, cwd=place, env=clean_environ(), check=kind != "nan", capture_output=True)
    step = "nan" if kind == "nan" else "worst-loss"
    command = [LOCKSTEP, "replay", str(run_dir), "--step", step, "--blame", "--json"]
    done = subprocess.run(command, cwd=place, env=clean_environ(), capture_output=True, text=True)
    if done.returncode not in (0, 1, 3):
        raise RuntimeError(done.stdout + done.stderr)
    return bool(json.loads(done.stdout)["blamed"] == [culprit])


def step_times(run_dir: Path) -> dict[int, float]:
    """When each line of rank 0's digest journal was written, by step."""
    return {
        event["last"]: event["time_s"]
        for event in read_events(run_dir, name=file_of(DIRECTORY, 0))
        if event["event"] == "steps"
    }


def ratios(run_dir: Path, directory: Path) -> list[float]:
    """The time of every five steps in a replay over that in its run."""
    ours, theirs = step_times(directory), step_times(run_dir)
    both = [step for step in sorted(ours) if step % EVERY == 0 and {step, step + EVERY} <= ours.keys() & theirs.keys()]
    return [(ours[step + EVERY] - ours[step]) / (theirs[step + EVERY] - theirs[step]) for step in both]


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = harness.make_parser(__doc__ or "", rounds=1)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--blames", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    say, draw = harness.speaker(args), random.Random(args.seed)
    num_pairs = len(CASES) if args.quick else args.pairs
    num_blames = 2 if args.quick else args.blames
    named = 0
    equal, unequal, found_ratios = 0, [], list[float]()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        runs = {}
        for number in range(num_blames):
            kind, culprit, nproc = ("nan", "spike")[number % 2], draw.randrange(1024), 1 + number % 4
            found = is_named(kind, culprit, nproc, place)
            named += found
            say(f"{kind} by sample {culprit} on {nproc} processes: {'named' if found else 'NOT NAMED'}")
        for case in CASES[:num_pairs]:
            runs[case.name] = train(case, place)
            say(f"trained {case.name}")
        for number in range(num_pairs):
            case = CASES[number % len(CASES)]
            step = draw.choice(read_digests(runs[case.name]).steps)
            is_equal, directory = replay(runs[case.name], step, place)
            equal += is_equal
            unequal += [] if is_equal else [f"{case.name} step {step}"]
            found_ratios += ratios(runs[case.name], directory) if case.nproc == 1 else []
            say(f"{case.name} step {step}: {'equal' if is_equal else 'NOT EQUAL'}")
    ratio = statistics.median(found_ratios) if found_ratios else None
    harness.finish(
        {
            "benchmark": "replay",
            "quick": args.quick,
            "pairs": num_pairs,
            "equal": equal,
            "unequal": unequal,
            "blames": num_blames,
            "named": named,
            "ratio": ratio,
            "num_ratios": len(found_ratios),
            "goal_met": equal == num_pairs and named == num_blames and (ratio is None or ratio <= 1.1),
            "machine": harness.machine(),
        }
    )


if __name__ == "__main__":
    main()
