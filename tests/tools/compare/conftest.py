"""Hand-written journals, and scripts that write them without training anything."""

import textwrap
from pathlib import Path

import pytest

from lockstep._tools.compare.comparison import Comparison, RowResult, RowRun
from lockstep._tools.compare.figures import figures_of
from lockstep._tools.compare.methods import Row, parse_method
from lockstep._tools.trials.machine import Machine
from lockstep._tools.trials.study import Task


def start_event(**fields):
    return {"event": "start", "world_size": 1, "device": "cpu", "device_name": "CPU", "num_cores": 4, **fields}


def epoch_event(**fields):
    """One pass: 1000 samples, of which 800 in 2 s after warm-up."""
    return {
        "event": "epoch",
        "epoch": 0,
        "num_steps": 10,
        "num_samples": 1000,
        "wall_s": 4.0,
        "steady_steps": 8,
        "steady_samples": 800,
        "steady_s": 2.0,
        "cpu_s": [2.0],
        "peak_rss_bytes": [100],
        "peak_gpu_bytes": [None],
        "gpu_utilisation": [None],
        **fields,
    }


@pytest.fixture
def start():
    return start_event


@pytest.fixture
def epoch():
    return epoch_event


@pytest.fixture
def make_comparison(tmp_path):
    """A comparison with one row for each ``(method, processes, seconds of the pass or reason that
    it failed)``; for several rounds, a tuple of seconds."""

    def make(*rows, threads=1, num_cores=4, loss=0.5, **of_epoch):
        results = []
        for number, (method, num_processes, outcome) in enumerate(rows, start=1):
            row = Row(number=number, method=parse_method(method), num_processes=num_processes)
            if isinstance(outcome, str):
                runs = (RowRun(status="failed", reason=outcome, log="runs/x.log"),)
                results.append(RowResult(row=row, runs=runs))
                continue
            runs = []
            for turn_round, seconds in enumerate(outcome if isinstance(outcome, tuple) else (outcome,), start=1):
                events = [
                    start_event(world_size=num_processes, num_cores=num_cores),
                    epoch_event(steady_s=seconds, cpu_s=[seconds] * num_processes, **of_epoch),
                    {"event": "evaluate", "epoch": 0, "step": 10, "values": {"loss": loss, "accuracy": 0.75}},
                ]
                runs.append(RowRun(round=turn_round, status="ok", figures=figures_of(events), command_s=9.0))
            results.append(RowResult(row=row, runs=tuple(runs)))
        return Comparison(
            directory=tmp_path,
            task=Task(command=("lockstep", "compare", "train.py"), script=Path("train.py")),
            shards=max(num_processes for _, num_processes, _ in rows),
            threads=threads,
            machine=Machine(
                date="2026-01-01T00:00:00+00:00",
                host="host",
                num_cores=num_cores,
                num_gpus=0,
                python="3.11",
                torch="2.13.0",
                lockstep="0.1.0",
            ),
            rows=tuple(results),
            rounds=max([1, *(len(result.runs) for result in results)]),
        )

    return make


SCRIPT = """
import json, os, subprocess, sys, time
from pathlib import Path
from lockstep._events.writer import EventWriter

settings = json.loads(os.environ["LOCKSTEP_SETTINGS"])
rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

def journal(world_size=world_size, num_samples=100):
    run_dir = Path(settings["run_dir"])
    run_dir.mkdir()  # a run's directory is never there before
    events = EventWriter(run_dir)
    events.write("start", world_size=world_size, device="cpu", num_cores=4)
    events.write("epoch", epoch=0, num_samples=num_samples, steady_samples=80, steady_s=0.5 / world_size,
                 cpu_s=[0.5] * world_size, peak_rss_bytes=[1000] * world_size, wall_s=1.0)
    events.write("evaluate", epoch=0, step=1, values={"loss": 0.25, "accuracy": 0.75})
"""


@pytest.fixture
def fake_script(tmp_path):
    """Writes a script whose ``journal()`` stands for a whole training run, and then goes on as
    told."""

    def write(then: str = "if rank == 0: journal()") -> Path:
        path = tmp_path / "fake.py"
        path.write_text(SCRIPT + textwrap.dedent(then))
        return path

    return write
