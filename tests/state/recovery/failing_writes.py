"""Runs whose writes fail and are slow where a plan says so, and what they have saved.

A save is known by the number that its unfinished directory ends with: 1, 2, ... for checkpoints,
``best-1``, ``best-2``, ... for best weights."""

import contextlib
import errno
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._base.stopping import Stopped
from lockstep._state.checkpoint import writer
from lockstep._state.checkpoint.store import Store
from lockstep._state.recovery import saving
from lockstep._state.recovery.saving import Saver
from lockstep._state.recovery.snapshots import Snapshots

MOST_EXCHANGES = 300  # without a new checkpoint: several seconds of waiting

Content = dict[str, str]
"""The digest of each tensor, and the plain state, by file."""


@dataclass
class Plan:
    """What happens in a run that saves itself after every step."""

    num_steps: int
    keep: int
    waits: list[int]
    """The steps in which all wait until nothing is being written."""
    metrics: dict[int, float]
    """The metrics for ``team.best``, by step."""
    fails: set[tuple[int, str]]
    """Rank and number of the saves that fail."""
    delays_s: dict[tuple[int, str], float]
    """How long a rank waits before each file, by rank and number of the save."""
    asked: dict[int, int] = field(default_factory=dict)
    """By rank, the step in which it is asked to stop."""
    fails_at_stop: int | None = None
    """The rank that can write nothing from then on."""
    every: int | str = 1
    """The interval of checkpoints in steps, or ``off``."""
    waits_alone: set[tuple[int, int]] = field(default_factory=set)
    """The ranks and steps in which one waits for its own part."""


@dataclass
class Seen:
    """What one rank has seen of a run."""

    run_dir: str = ""
    saves: dict[str, tuple[int, Content]] = field(default_factory=dict)
    """The step of each save, and this rank's part of the state at that moment, by its number."""
    committed: list[tuple[str, Content]] = field(default_factory=list)
    """The number and content of each directory that got its name, in order."""
    kept: list[set[str]] = field(default_factory=list)
    """The names in the directory of checkpoints after each."""
    best: dict[int, tuple[bool, float | None]] = field(default_factory=dict)
    """By step, what ``team.best`` has returned, and the best metric from then on."""
    codes: list[str] = field(default_factory=list)
    """Of the warnings about saving."""
    failed: set[str] = field(default_factory=set)
    """The numbers of the saves that this rank could not write."""
    status: int | None = None
    """The exit status, if the run was stopped."""
    idle: list[tuple[int | None, bool]] = field(default_factory=list)
    """After each wait, what is in progress, and whether the run is paused."""
    pause_s: float = 0.0
    num_saved: int = 0


def _number(name: str) -> str:
    found = re.search(r"-((best-)?\d+)$", name)
    assert found is not None
    return found[1]


def _digests(files: Any) -> Content:
    return {
        f"{file} {name}": f"{t.dtype} {hashlib.sha256(t.contiguous().view(-1).view(torch.uint8).numpy()).hexdigest()}"
        for file, tensors in files.items()
        for name, tensor in tensors.items()
        for t in [tensor.detach()]
    }


@contextlib.contextmanager
def noted(plan: Plan, seen: Seen, team: lockstep.Team) -> Iterator[None]:
    """Makes the plan happen, and notes what is saved."""
    rank, saver = team.rank, team._engine.saver

    def disturbed(write: Any) -> Any:
        def call(path: Path, *args: Any, **options: Any) -> Any:
            number = _number(path.parent.name)
            time.sleep(plan.delays_s.get((rank, number), 0.0))
            fails = (rank, number) in plan.fails or (saver.is_stopping and rank == plan.fails_at_stop)
            # the first of its files is there by then
            if fails and write is writes[1]:
                seen.failed.add(number)
                raise OSError(errno.ENOSPC, "No space left on device (the test says so)")
            return write(path, *args, **options)

        return call

    def exchange(self: Saver, numbers: list[int]) -> list[int]:
        nonlocal num_exchanges
        num_exchanges += 1
        assert num_exchanges < MOST_EXCHANGES, "it waits for a part that will not come"
        return exchange_before(self, numbers)

    def take(self: Snapshots, position: Any, step: int, epoch: int, *, finished: bool) -> Any:
        nonlocal num_exchanges
        num_exchanges = 0
        files, state = self._state.part(rank, self._collectives.size)
        job = taken(self, position, step, epoch, finished=finished)
        plain = {"state.json": json.dumps(state, sort_keys=True)} if rank == 0 else {}
        seen.saves[_number(job.token)] = step, {**_digests(files), **plain}
        return job

    def take_weights(self: Snapshots, value: float, step: int, epoch: int) -> Any:
        files = self._state.weights(rank)
        job = weights_taken(self, value, step, epoch)
        if job is not None:
            seen.saves[_number(job.token)] = step, _digests(files)
        return job

    def put(self: Store, unfinished: Path, *args: Any) -> None:
        put_before(self, unfinished, *args)
        number, path = _number(unfinished.name), args[-1]
        content = _digests({file.name: load_file(file) for file in path.glob("*.safetensors")})
        if not number.startswith("best"):
            content["state.json"] = json.dumps(json.loads((path / "state.json").read_text()), sort_keys=True)
        seen.committed.append((number, content))

    def commit(self: Store, *args: Any) -> Path:
        path = commit_before(self, *args)
        seen.kept.append({each.name for each in self.directory.iterdir()})
        return path

    writes = writer.write_tensors, writer.write_json
    num_exchanges, exchange_before = 0, Saver._exchange
    taken, weights_taken, put_before, commit_before = Snapshots.take, Snapshots.take_weights, Store._put, Store.commit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "write_tensors", disturbed(writes[0]))
        patch.setattr(writer, "write_json", disturbed(writes[1]))
        patch.setattr(Saver, "_exchange", exchange)
        patch.setattr(Snapshots, "take", take)
        patch.setattr(Snapshots, "take_weights", take_weights)
        patch.setattr(Store, "_put", put)
        patch.setattr(Store, "commit", commit)
        patch.setattr(saving, "warn", lambda text, *, code: seen.codes.append(code))
        yield


def train(plan: Plan, run_dir: str) -> Seen:
    """Trains by a plan."""
    seen = Seen(run_dir=str(Path(run_dir).absolute()))
    try:
        settings = {"run_dir": run_dir, "checkpoint_every": plan.every, "keep": plan.keep, "seed": 1}
        with lockstep.join(**settings) as team, noted(plan, seen, team):
            _train(team, plan, seen)
    except Stopped as stopped:
        seen.status = stopped.status
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which a process that exits ignores
    return seen


def _train(team: lockstep.Team, plan: Plan, seen: Seen) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(8 * plan.num_steps, 6)), 8)
    model, optimizer, loader = team.prepare(model, optimizer, loader)
    table, saver = team.register("table", {"steps": 0}), team._engine.saver
    for batch in loader:
        for (inputs,) in batch.shards:
            team.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        table["steps"] += 1
        if team.step in plan.waits:
            saver.wait_until_written()
            seen.idle.append((saver.in_progress, saver.is_paused))
        if (team.rank, team.step) in plan.waits_alone:
            saver._writer.wait()
        if team.step in plan.metrics:
            seen.best[team.step] = team.best(plan.metrics[team.step], mode="min"), team.best_metric
        if team.step == plan.asked.get(team.rank):
            os.kill(os.getpid(), signal.SIGTERM)
    team.close()
    seen.pause_s, seen.num_saved = saver.pause_s, saver.num_saved


def train_all(plans: list[Plan], name: str) -> list[Seen]:
    """Trains by each of the plans."""
    return [train(plan, f"{name}-{number}") for number, plan in enumerate(plans)]


def fail_while_writing(run_dir: str) -> Seen:
    """A script that fails while a checkpoint is being written."""
    plan, seen = Plan(3, 3, [], {}, set(), {(rank, "1"): 0.1 for rank in range(2)}), Seen()
    saving._LAST_WORDS_S = 60.0  # on a busy machine, too
    with (
        contextlib.suppress(ZeroDivisionError),
        lockstep.join(run_dir=run_dir, checkpoint_every=1) as team,
        noted(plan, seen, team),
    ):
        model, loader = team.prepare(nn.Linear(6, 1), DataLoader(TensorDataset(torch.randn(16, 6)), 8))
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            if team.step == 2:
                raise ZeroDivisionError
    return seen


def go_on_until_written(run_dir: str, limit_s: float) -> int:
    """Rank 1 cannot write its part of the first checkpoint. Nobody waits, and steps follow until
    another one is written. Returns how many were by then."""
    plan, seen = Plan(0, 3, [], {}, {(1, "1")}, {(1, "1"): 0.1}), Seen()
    with lockstep.join(run_dir=run_dir, checkpoint_every=1) as team, noted(plan, seen, team):
        model, loader = team.prepare(nn.Linear(6, 1), DataLoader(TensorDataset(torch.randn(80_000, 6)), 8))
        deadline = time.monotonic() + limit_s
        for batch in loader:
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            if team.any(bool(seen.committed) or time.monotonic() > deadline):
                break
        return len(seen.committed)
