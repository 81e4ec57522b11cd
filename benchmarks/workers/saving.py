"""One process of ``checkpoint.py``: a transformer with Adam, trained step by step and saved every
so many steps.

    python benchmarks/workers/saving.py CONTENDER --width N --layers N --threads N --before N
    --after N --dir DIR

Contenders: ``lockstep`` (``checkpoint_every``), ``torch.save`` (between two steps), and
``async_save`` of ``torch.distributed.checkpoint`` with one of four settings. A turn is ``before``
undisturbed steps, a cut, and ``after`` steps that the checkpoint may delay. Rank 0 appends the
measurements to ``DIR/held.jsonl``, one line per turn. After the first checkpoint, it also checks
that the files can be loaded and have the values of the cut."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse
from tree import WORDS, Transformer
from turns import take_turns

RANK, WORLD_SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
TOKENS = 16
_TIMEOUT_S = 300.0
MOMENTS = ("exp_avg", "exp_avg_sq")
Values = dict[str, Any]
"""Of each tensor by name, what it is known by again."""


def make_model(args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Transformer(args.width, args.layers)
    # The fused one, so that a step is short beside what is measured.
    return model, torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)


def make_batch() -> tuple[Tensor, Tensor]:
    tokens, targets = torch.randint(WORDS, (2, WORLD_SIZE, TOKENS), generator=torch.Generator().manual_seed(1))
    return tokens, targets


# What was measured


class Saving(Protocol):
    """How a contender saves, seen from outside."""

    def is_written(self, step: int) -> bool:
        """Whether the checkpoint of that step is written. Asked when the next steps begin."""

    def wait(self, step: int) -> None:
        """Return when it is."""

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """Returns weights and moments by the names of parameters, as a resumed training reads
        them."""


class Clock:
    """The times of steps, whose ``begins`` returns True at the end of a turn."""

    def __init__(self, args: argparse.Namespace, saving: Saving, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._before, self._after = args.before, args.after
        self._cycle = args.before + args.after
        self._notes = args.dir / "held.jsonl"
        self._saving = saving
        self._model = model
        self._optimizer = optimizer
        self._came: dict[int, float] = {}
        self._went: dict[int, float] = {}
        self._others: dict[int, float] = {}
        self._written_at: int | None = None
        self._next = 1
        self._expected: Values = {}

    def begins(self) -> bool:
        """Records the begin of a step. Returns whether the turn ends."""
        step, self._next = self._next, self._next + 1
        self._came[step] = time.perf_counter()
        self._others[step] = others_cpu_s()
        cut = (step - 1) // self._cycle * self._cycle  # the last step before the checkpoint
        is_over = False
        if cut > 0:
            if step == cut + 1:
                self._written_at = None
                if cut == self._cycle:
                    self._expected = values_of(self._model, self._optimizer)
            if self._written_at is None and self._saving.is_written(cut):
                self._written_at = step
            is_over = step == cut + self._after + 1
            if is_over:
                self._note(cut)
        self._went[step] = time.perf_counter()
        return is_over

    def resumes(self) -> None:
        """Begins the next turn."""
        self._went[self._next - 1] = time.perf_counter()

    def _note(self, cut: int) -> None:
        """Records, at the end of a turn, the cost of the checkpoint after step ``cut``."""
        # The first step of a turn does not count, since it has cold caches.
        first = cut - self._before + 2
        lasted = {step: self._came[step + 1] - self._went[step] for step in range(first, cut + self._after + 1)}
        end = self._written_at or cut + self._after + 1  # the first step that was left alone again
        plain_s = statistics.median(lasted[step] for step in lasted if step < cut or step >= end)
        window = [lasted[step] for step in lasted if cut <= step < end]
        note = {
            "held_s": sum(window) - len(window) * plain_s,
            "pause_s": lasted[cut] - plain_s,
            "step_s": plain_s,
            "held_steps": len(window),
            "others_cores": (self._others[end] - self._others[cut]) / sum(window),
            "ended": self._written_at is not None,
        }
        self._saving.wait(cut)
        if cut == self._cycle and RANK == 0:
            note["sound"] = loads_again(self._expected, self._saving, cut)
        os.sync()
        if RANK == 0:
            with self._notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(note) + "\n")


def others_cpu_s() -> float:
    """Returns the processor time of this machine that other programs used. The ranks of this
    training are assumed to use equal time."""
    with Path("/proc/stat").open() as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    spent = user + nice + system + irq + softirq + steal
    return spent / os.sysconf("SC_CLK_TCK") - WORLD_SIZE * time.process_time()


def known_by(tensor: Tensor) -> tuple[int, list[float]]:
    """All bits of a tensor, and some of its elements with their places."""
    flat = tensor.detach().reshape(-1)
    return int(torch.hash_tensor(flat).view(torch.int64)), flat[:: max(1, len(flat) // 100)].tolist()


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Values:
    found: Values = {}
    for name, parameter in model.named_parameters():
        found[name] = known_by(parameter)
        for moment in MOMENTS:
            found[f"{name}.{moment}"] = known_by(optimizer.state[parameter][moment])
    return {name.removeprefix("module."): value for name, value in found.items()}


def loads_again(expected: Values, saving: Saving, step: int) -> bool:
    weights, moments = saving.load(step)
    found = {name: known_by(tensor) for name, tensor in weights.items()}
    found.update({f"{name}.{moment}": known_by(own[moment]) for name, own in moments.items() for moment in MOMENTS})
    return len(expected) > 0 and found == expected


# The contenders


class OfLockstep:
    def __init__(self, run_dir: Path, names: list[str]) -> None:
        self._run_dir = run_dir
        self._names = names
        self._offset = 0
        self._steps: set[int] = set()

    def is_written(self, step: int) -> bool:
        """Reads the event log, which has a checkpoint at the end of the first step that finds it
        written."""
        with (self._run_dir / "events.jsonl").open("rb") as file:
            file.seek(self._offset)
            lines = file.read()
            self._offset += len(lines)
        events = map(json.loads, lines.splitlines())
        self._steps.update(event["step"] for event in events if event["event"] == "checkpoint")
        return step in self._steps

    def wait(self, step: int) -> None:
        newest = self._run_dir / "checkpoints" / "newest"
        deadline = time.monotonic() + _TIMEOUT_S
        while not newest.exists() or newest.read_text(encoding="utf-8").strip() != self._path(step).name:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the checkpoint of step {step} does not come")
            time.sleep(0.1)

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        from safetensors.torch import load_file

        import lockstep

        state: dict[str, Tensor] = {}
        for file in self._path(step).glob("state-*.safetensors"):
            state.update(load_file(file))
        moments = {
            name: {moment: state[f"optimizer.state.{number}.{moment}"] for moment in MOMENTS}
            for number, name in enumerate(self._names)
        }
        return lockstep.load_weights(self._path(step)), moments

    def _path(self, step: int) -> Path:
        return self._run_dir / "checkpoints" / f"step-{step:08d}"


def with_lockstep(args: argparse.Namespace) -> Iterator[None]:
    import lockstep

    cycle = args.before + args.after
    run_dir = str(args.dir / "run")
    team = lockstep.join(threads=args.threads, progress="off", run_dir=run_dir, checkpoint_every=cycle, device="cpu")
    plain, optimizer = make_model(args)
    names = [name for name, _ in plain.named_parameters()]
    model, optimizer, loader = team.prepare(plain, optimizer, [make_batch()] * 1_000_000)
    clock = Clock(args, OfLockstep(team.run_dir, names), plain, optimizer)
    criterion = nn.CrossEntropyLoss()
    for batch in loader:
        if clock.begins():
            yield
            clock.resumes()
        for tokens, targets in batch.shards:
            loss = criterion(model(tokens), targets)
            team.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


class ByHand:
    """What both peers of PyTorch have in common."""

    def __init__(self, directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._directory = directory
        self._model = model
        self._optimizer = optimizer
        self._names = [name for name, _ in model.named_parameters()]

    def state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def save(self, step: int) -> None:
        raise NotImplementedError

    def before_update(self) -> None:
        """Called before every optimizer step."""

    def clear(self, step: int) -> None:
        """Remove the checkpoint before the last."""
        for path in self._directory.iterdir():
            if path != self.path(step):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def path(self, step: int) -> Path:
        return self._directory / f"step-{step}"

    def read(self, step: int) -> dict[str, Any]:
        raise NotImplementedError

    def load(self, step: int) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        state = self.read(step)
        return state["model"], {name: state["optimizer"]["state"][number] for number, name in enumerate(self._names)}


class TorchSave(ByHand):
    def save(self, step: int) -> None:
        if RANK == 0:
            torch.save(self.state(), self.path(step))

    def is_written(self, step: int) -> bool:
        return True

    def wait(self, step: int) -> None:
        if RANK == 0:
            self.clear(step)

    def read(self, step: int) -> dict[str, Any]:
        state: dict[str, Any] = torch.load(self.path(step), mmap=True, weights_only=True)
        return state


class AsyncSave(ByHand):
    """How it is set, by name:

    plain       as its documentation begins: a new copy in memory for each checkpoint
    cached      a DefaultStager that is kept, so that it copies into the same memory each time
    overlapped  the same, copying in a thread; waited for before the next update
    process     as cached, in shared memory, written by another process
    """

    def __init__(self, directory: Path, model: nn.Module, optimizer: torch.optim.Optimizer, how: str) -> None:
        super().__init__(directory, model, optimizer)
        options = StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=how == "process",
            use_async_staging=how == "overlapped",
            use_non_blocking_copy=False,  # both need a GPU
        )
        self._stager = None if how == "plain" else DefaultStager(options)
        self._type = AsyncCheckpointerType.PROCESS if how == "process" else AsyncCheckpointerType.THREAD
        # Of its own: what its thread sends must not meet what training sends.
        self._group = torch.distributed.new_group(backend="gloo")
        self._staged: Future[None] | None = None
        self._written: Future[Any] | None = None

    def save(self, step: int) -> None:
        began = dcp.async_save(
            self.state(),
            storage_writer=dcp.FileSystemWriter(self.path(step)),
            async_stager=self._stager,
            async_checkpointer_type=self._type,
            process_group=self._group,
        )
        if isinstance(began, AsyncSaveResponse):
            self._staged, self._written = began.staging_completion, began.upload_completion
        else:
            self._written = began

    def before_update(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def is_written(self, step: int) -> bool:
        assert self._written is not None
        return self._written.done()

    def wait(self, step: int) -> None:
        assert self._written is not None
        self._written.result()
        if RANK == 0:
            self.clear(step)

    def read(self, step: int) -> dict[str, Any]:
        state = self.state()
        empty = {
            "model": {name: torch.empty_like(value) for name, value in state["model"].items()},
            "optimizer": {
                **state["optimizer"],
                "state": {
                    number: {key: torch.empty_like(value) for key, value in own.items()}
                    for number, own in state["optimizer"]["state"].items()
                },
            },
        }
        dcp.load(empty, checkpoint_id=self.path(step), no_dist=True)
        return empty


def by_hand(args: argparse.Namespace) -> Iterator[None]:
    torch.set_num_threads(args.threads)
    # it is meant to load alone
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    plain, optimizer = make_model(args)
    model: Any = plain
    store = None if WORLD_SIZE > 1 else torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=RANK, world_size=WORLD_SIZE)
    if WORLD_SIZE > 1:
        model = nn.parallel.DistributedDataParallel(plain)
    directory = args.dir / "run"
    directory.mkdir(exist_ok=True)
    kind, _, how = args.contender.partition(":")
    saving: Any = (
        AsyncSave(directory, plain, optimizer, how) if kind == "async_save" else TorchSave(directory, plain, optimizer)
    )
    clock = Clock(args, saving, plain, optimizer)
    cycle = args.before + args.after
    tokens, targets = (whole[RANK : RANK + 1] for whole in make_batch())
    criterion = nn.CrossEntropyLoss()
    step = 0
    while True:
        if clock.begins():
            yield
            clock.resumes()
        loss = criterion(model(tokens), targets)
        loss.backward()
        saving.before_update()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % cycle == 0:
            saving.save(step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    hows = [f"async_save:{how}" for how in ("plain", "cached", "overlapped", "process")]
    parser.add_argument("contender", choices=["lockstep", "torch.save", *hows])
    for name in ("width", "layers", "threads", "before", "after"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dir", type=Path, required=True)
    args = parser.parse_args()
    training = (with_lockstep if args.contender == "lockstep" else by_hand)(args)
    take_turns(lambda: next(training))


if __name__ == "__main__":
    main()
