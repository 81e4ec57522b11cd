"""Scripts of several libraries (``workers/samples``), killed and launched again, and their notes
of the samples on which they trained."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _crew import WORKERS, clean_environ

LIMIT_S = 300.0
"""For one launch; most take three to ten seconds, on a quiet machine."""


class RefusedError(Exception):
    """A launch that should end well does not: its last line."""


@dataclass(frozen=True)
class Peer:
    """One column."""

    name: str
    script: str
    distributions: tuple[str, ...]
    """What must be installed."""
    weights: str
    """Where its checkpoints are: a pattern."""
    launcher: str = "torchrun"
    """Or ``lockstep``, or ``python``: without a launcher on one process."""
    remedy: str = ""
    """What its documentation offers against what a case shows."""

    def command(self, nproc: int) -> list[str]:
        """All of it but the script's arguments."""
        script = str(WORKERS / "samples" / self.script)
        if self.launcher == "lockstep":
            return [sys.executable, "-m", "lockstep", "run", "--nproc-per-node", str(nproc), script]
        if self.launcher == "python" and nproc == 1:
            return [sys.executable, script]
        meet = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
        return [sys.executable, "-m", "torch.distributed.run", *meet, "--nproc-per-node", str(nproc), script]


PEERS = (
    Peer("accelerate", "by_accelerate.py", ("accelerate",), "step_*/model.safetensors", "python"),
    Peer("Fabric", "by_fabric.py", ("lightning-fabric",), "checkpoint.ckpt", "python"),
    Peer("Lightning", "by_lightning.py", ("lightning", "torchdata"), "checkpoints/last.ckpt", "python"),
    Peer("Trainer", "by_trainer.py", ("transformers", "accelerate"), "checkpoints/checkpoint-*/model.safetensors", "python"),
    Peer("StatefulDataLoader", "by_stateful.py", ("torchdata",), "snapshot.pt"),
    Peer("DDP", "by_tutorial.py", (), "snapshot.pt"),
    Peer("resumable + DDP", "by_resumable.py", (), "snapshot.pt"),
    Peer(
        "Trainer + lockstep",
        "by_trainer_on_lockstep.py",
        ("transformers", "accelerate"),
        "run/checkpoints/step-*/model.safetensors",
        "lockstep",
    ),
    Peer("lockstep", "by_lockstep.py", (), "run/checkpoints/step-*/model.safetensors", "lockstep"),
)


@dataclass(frozen=True)
class Note:
    """What one process wrote down."""

    launch: int
    rank: int
    what: str
    values: dict[str, Any]


class Job:
    """One script of one peer in a separate directory, launched once or several times.

    Args:
        peer: whose.
        task: of that script.
        directory: of checkpoints and notes.
        options: of every launch.
    """

    def __init__(self, peer: Peer, task: str, directory: Path, **options: object) -> None:
        self.directory = directory
        self._peer, self._task, self._options = peer, task, options
        self._launches = 0

    def launch(self, nproc: int, *, stop: int | None = None, limit_s: float = LIMIT_S, **options: object) -> None:
        """Run to the end, or until step ``stop`` has been saved and the next begins.

        Raises:
            RefusedError: it did not end, or not well.
        """
        save_every = 1000 if stop is None else stop
        given = {"directory": self.directory, "launch": self._launches, "save_every": save_every, "stop": stop}
        given = {**given, **self._options, **options}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
        words += ["--remedy"] if self._peer.remedy else []
        printed = self.directory / f"printed-{self._launches}.txt"
        self._launches += 1
        self.directory.mkdir(parents=True, exist_ok=True)
        with printed.open("w") as output:
            process = subprocess.Popen(
                [*self._peer.command(nproc), self._task, *words],
                cwd=self.directory,
                env=clean_environ(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise RefusedError(f"no end within {limit_s:.0f} s") from None
            finally:
                end_session(process)
        text = printed.read_text(encoding="utf-8", errors="replace")
        if (status == 0) != (stop is None):
            raise RefusedError(last_error(text) if status else "ended too early")

    def notes(self, what: str) -> list[Note]:
        """All of that kind, by launch and rank, in the order of each process."""
        return [note for note in self._read() if note.what == what]

    def _read(self) -> Iterator[Note]:
        for path in sorted((self.directory / "notes").glob("*.jsonl")):
            launch, rank, _ = (int(part) for part in path.stem.split("-"))
            for line in path.read_text(encoding="utf-8").splitlines():
                values = json.loads(line)
                yield Note(launch, rank, values.pop("what"), values)

    def steps(self) -> list[Note]:
        """The steps that are in the weights at the end: a launch that resumes at an earlier step
        has undone later ones."""
        trained = self.notes("trained")
        kept: list[Note] = []
        for launch in range(self._launches):
            new = [note for note in trained if note.launch == launch]
            if new:
                first = min(note.values["step"] for note in new)
                kept = [note for note in kept if note.values["step"] < first] + new
        return kept

    def batches(self, epoch: int) -> list[frozenset[int]]:
        """The samples of each of that epoch's steps, on all ranks together."""
        steps: dict[int, set[int]] = {}
        for note in self.steps():
            if note.values["epoch"] == epoch:
                steps.setdefault(note.values["step"], set()).update(note.values["numbers"])
        return [frozenset(steps[step]) for step in sorted(steps)]

    def evaluated(self, launch: int = 0) -> Counter[int]:
        """How often that launch's evaluations counted each sample."""
        return Counter(n for note in self.notes("evaluated") if note.launch == launch for n in note.values["numbers"])

    def cut_newest(self) -> None:
        """Leave half of the newest checkpoint's weights."""
        newest = max(self.directory.glob(self._peer.weights), key=lambda path: path.stat().st_mtime_ns)
        os.truncate(newest, newest.stat().st_size // 2)

    def lost(self) -> int:
        """Samples of steps that a resumed launch has undone."""
        all_of_them, kept = (sum(len(n.values["numbers"]) for n in notes) for notes in (self.notes("trained"), self.steps()))
        return all_of_them - kept

    def uses(self, epoch: int = 0) -> Counter[int]:
        """How often the weights at the end have seen each sample in that epoch."""
        return Counter(n for note in self.steps() if note.values["epoch"] == epoch for n in note.values["numbers"])


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a launch and whatever it has started and left in its session."""
    try:
        os.killpg(process.pid, signal.SIGTERM if process.poll() is None else signal.SIGKILL)
        process.wait(20)
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        process.kill()
    process.wait()


def last_error(text: str) -> str:
    """Returns the first exception in the output; without one, the last line."""
    lines = [re.sub(r"^\[rank\d+\]:", "", line).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w+(Error|Exception): ", line)]
    return textwrap.shorten((errors or lines[-1:] or ["nothing was printed"])[0], 120)
