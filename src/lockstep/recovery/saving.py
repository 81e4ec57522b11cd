"""The state of a whole run, out of the script's objects into checkpoints and back: what, when, and by whom."""

from __future__ import annotations

import contextlib
import math
import platform
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from lockstep.checkpoint.gathered import gather_full
from lockstep.checkpoint.manifest import Manifest
from lockstep.checkpoint.pace import Pace
from lockstep.checkpoint.parts import deal_out
from lockstep.checkpoint.staging import Staging
from lockstep.checkpoint.store import Store
from lockstep.checkpoint.tree import take_apart
from lockstep.checkpoint.writer import Job, Writer, Written
from lockstep.comm.agreement import compare_ranks
from lockstep.comm.collectives import Collectives
from lockstep.comm.dtensors import is_dtensor
from lockstep.config import RunConfig
from lockstep.errors import ConfigError
from lockstep.listener import Listener
from lockstep.measure.journal import Journal
from lockstep.recovery.position import Position
from lockstep.recovery.run_state import RunState
from lockstep.recovery.software import numerics, version
from lockstep.rundir.birth import Birth
from lockstep.stopping import REQUEUE_STATUS, UNSAVED_STATUS, Stopped, StopWatch, say

_OF_ALL_RANKS = "Give it what is the same on all ranks: a result of team.evaluate(), batch[name] or loader.averages"
_FINAL_TRIES = 3
_LAST_WORDS_S = 1.0
"""How long a failing run waits for a checkpoint that is being written."""
_LOOK_EVERY_S = 0.02
_BEST_RETRY_S = 10.0
_SIGNAL_RANGE = 128
"""Signals have smaller numbers."""


class Saver(Listener):
    """Saves checkpoints of a run, and keeps its best weights.

    Args:
        store: where they go.
        config: says how often (of a traced run only the best weights are written, if they are asked for, and the state when
            it is asked to stop), and how many stay.
        token: of this launch, the same on every rank.
        birth: of the run.
        state: of the run.
        collectives: of all ranks.
        journal: told of each checkpoint.
        stop_watch: notes that this rank is asked to stop.
    """

    def __init__(
        self,
        store: Store,
        config: RunConfig,
        token: str,
        birth: Birth,
        state: RunState,
        collectives: Collectives,
        journal: Journal,
        stop_watch: StopWatch,
    ) -> None:
        self.is_due = False
        """Whether a checkpoint is to be saved before the next step. The same on every rank."""
        self.has_stopped = False
        """Whether the run was asked to stop, and leaves."""
        self._store = store
        self._keep = config.keep
        self._token = token
        self._birth = birth
        self._state = state
        self._collectives = collectives
        self._journal = journal
        self._is_main = collectives.rank == 0
        self._stop_watch = stop_watch
        every = "off" if config.trace != "off" else config.interval
        self._pace = Pace(every, self._exchange, is_alone=collectives.size == 1)
        self._writer = Writer(store)
        self._staging, self._staging_of_best = Staging(), Staging()
        self._touching: threading.Thread | None = None
        self._last_sound: int | None = None
        self._held_s: dict[int, float] = {}
        self._num_saved = 0
        self._best_job: Job | None = None
        """On rank 0: the best weights, as long as they are not written."""
        self._best_retry_at = 0.0

    # When

    def tick(self, step: int) -> None:
        """A step has ended on all ranks. Every rank must call it."""
        if self._touching is None and not self._pace.is_off:
            self._rehearse()
        if self._writer.has_results:
            self._read_results()
        is_due, failed = self._pace.tick(step, is_busy=self._writer.is_busy, asked=self._asked())
        self.is_due = self.is_due or is_due
        if failed:
            self._writer.give_up()
        self._retry_best()

    def ask(self) -> None:
        """An epoch is over, on all ranks, its tail too: is the run to stop here? Every rank must call it."""
        self.is_due = self._pace.ask(self._asked()) or self.is_due

    def _asked(self) -> int:
        """For ``Pace``: 0, or a number that tells the signal, and the largest of which is that of the lowest rank."""
        received = self._stop_watch.received
        return 0 if received is None else (self._collectives.size - self._collectives.rank) * _SIGNAL_RANGE + received

    def _exchange(self, numbers: list[int]) -> list[int]:
        if self._collectives.size == 1:
            return numbers
        largest: list[int] = self._collectives.all_reduce(torch.tensor(numbers, dtype=torch.int64), "max").tolist()
        return largest

    def _rehearse(self) -> None:
        """After the first step all state is there: see that it can be saved, and make the memory for its copy ready."""
        parts, _ = self._contents()
        mine = parts[self._collectives.rank]
        tensors = {f"{file}/{name}": tensor for file, part in mine.items() for name, tensor in part.items()}
        shapes = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            for name, tensor in tensors.items()
            if is_dtensor(tensor) or not tensor.is_cuda
        }
        self._touching = threading.Thread(target=self._staging.prepare, args=(shapes,), name="lockstep-staging", daemon=True)
        self._touching.start()

    # What

    def save_due(self, position: Position, step: int, epoch: int) -> None:
        """Save the checkpoint that is due. Every rank must call it.

        Raises:
            Stopped: the run was asked to stop, and the checkpoint is on the disk (or could not be written, which is said).
        """
        if self._pace.asked:
            self._stop(position, step, epoch)
        self.save(position, step, epoch)

    def _stop(self, position: Position, step: int, epoch: int) -> NoReturn:
        ranks_above, number = divmod(self._pace.asked, _SIGNAL_RANGE)
        asked_rank, name = self._collectives.size - ranks_above, signal.Signals(number)
        self._stop_watch.say(name, asked_rank)
        self.has_stopped = True
        saved = step == 0 or self._save_for_good(position, step, epoch)  # at step 0 there is nothing to lose
        self._journal.write("preempted", step=step, signal=name.name, rank=asked_rank, saved=saved)
        if self._is_main and saved:
            say(f"run {self._store.run_dir} is saved after step {step}. The same command resumes it.")
        elif self._is_main:
            newest = f"step {self._last_sound}" if self._last_sound else "the newest checkpoint, if there is one"
            say(
                f"run {self._store.run_dir} could NOT be saved after step {step}, and ends with status {UNSAVED_STATUS}. When "
                f"there is room, the same command resumes from {newest}."
            )
        status = REQUEUE_STATUS if saved else UNSAVED_STATUS
        self._stop_watch.settle(status)
        raise Stopped(status)

    def _save_for_good(self, position: Position, step: int, epoch: int, *, finished: bool = False) -> bool:
        """Save the last checkpoint of this launch, and wait for it; whether it was written. Every rank must call it."""
        self._retry_best()
        for attempt in range(_FINAL_TRIES):
            self.save(position, step, epoch, finished=finished)
            if self.settle():
                return True
            if attempt + 1 < _FINAL_TRIES:
                time.sleep(2.0**attempt)
        return False

    def save(self, position: Position, step: int, epoch: int, *, finished: bool = False) -> None:
        """Take the run's state as it is now, and have it written. Every rank must call it."""
        began = time.perf_counter()
        self.settle()
        self.is_due = False
        self._pace.begin_save()
        if self._touching is not None:
            self._touching.join()
        parts, state = self._contents()
        mine = gather_full(parts, self._collectives.rank)
        manifest = Manifest(
            step=step,
            epoch=epoch,
            time_s=time.time(),
            finished=finished,
            position=position.as_json(),
            numerics=numerics(),
            **self._state.describe(),
            **self._origin(),
        )
        self._num_saved += 1
        self._writer.submit(self._job(manifest, mine, state, self._staging))
        self._held_s[step] = time.perf_counter() - began

    def _origin(self) -> dict[str, Any]:
        return {
            "birth": self._birth.as_json(),
            "world_size": self._collectives.size,
            "versions": {"lockstep": version(), "torch": torch.__version__, "python": platform.python_version()},
        }

    def _job(self, manifest: Manifest, files: dict[str, dict[str, Tensor]], state: Any, staging: Staging) -> Job:
        """This rank's part in writing these files, of which copies are taken."""
        flat = {f"{file}/{name}": tensor for file, part in files.items() for name, tensor in part.items()}
        copies, copied = staging.copy(flat)
        # A name on which the ranks agree: they have all saved as many checkpoints.
        is_best = manifest.kind == "weights"
        return Job(
            manifest=manifest,
            token=f"{self._token}-{'best' if is_best else self._num_saved}",
            rank=self._collectives.rank,
            world_size=self._collectives.size,
            keep=self._keep,
            tensors={file: {name: copies[f"{file}/{name}"] for name in part} for file, part in files.items()},
            state=state,
            copied=copied,
        )

    def _contents(self) -> tuple[list[dict[str, dict[str, Tensor]]], Any]:
        """The files of each rank, with their tensors, and the JSON value of ``state.json``.

        The state is the same on every rank. The weights go to rank 0, the rest to whoever has least.
        """
        weights, tree = self._state.weights(), self._state.state_dict()
        tensors: dict[str, Tensor] = {}
        names = [content.name for content in self._state.objects]
        state = {
            "objects": [_apart(one, name, tensors) for one, name in zip(tree["objects"], names, strict=True)],
            "loaders": [_apart(one, f"loader-{number}", tensors) for number, one in enumerate(tree["loaders"], 1)],
            "registered": _apart(tree["registered"], "registered", tensors),
            "best": _apart(tree["best"], "best", tensors),
        }
        sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
        held = [sum(t.nbytes for part in weights.values() for t in part.values())] + [0] * (self._collectives.size - 1)
        parts: list[dict[str, dict[str, Tensor]]] = [weights, *({} for _ in held[1:])]
        for rank, names in enumerate(deal_out(sizes, held)):
            if names:
                parts[rank][f"state-{rank}.safetensors"] = {name: tensors[name] for name in names}
        return parts, state

    # How it went

    def _read_results(self) -> bool:
        """Tell of what has been written since the last call. False: something could not be."""
        well = True
        for result in self._writer.results():
            step, is_best = result.manifest.step, result.manifest.kind == "weights"
            if is_best:
                self._best_job = self._best_job if result.error else None
                self._best_retry_at = time.monotonic() + _BEST_RETRY_S
            else:
                self._pace.written(well=not result.error)
                well = well and not result.error
            if result.error:
                self._warn(result)
            elif result.path is not None:
                self._last_sound = self._last_sound if is_best else step
                self._journal.write(
                    "checkpoint",
                    step=step,
                    kind=result.manifest.kind,
                    name=result.path.name,
                    held_s=None if is_best else self._held_s.pop(step, None),
                    wall_s=result.wall_s,
                )
        return well

    def _warn(self, result: Written) -> None:
        what, retry_s = "the checkpoint", self._pace.retry_s
        if result.manifest.kind == "weights":
            what, retry_s = "the best weights,", _BEST_RETRY_S
        newest = f"the one of step {self._last_sound} stays the newest"
        _print(
            f"rank {self._collectives.rank} could not write {what} of step {result.manifest.step} in {self._store.run_dir}: "
            f"{result.error}. Training continues without it ({newest if self._last_sound else 'there is none before it'}); the "
            f"next try is in {retry_s:.0f} s."
        )
        self._journal.write("checkpoint_failed", step=result.manifest.step, error=result.error)

    def settle(self) -> bool:
        """Wait until nothing is under way; whether all ranks could write. Every rank must call it."""
        well = True
        while True:
            is_busy = self._writer.is_busy
            well = self._read_results() and well
            some_busy, some_failed = self._exchange([is_busy, not well])
            if some_failed:
                self._writer.give_up()  # rank 0 waits for the parts of the others
            if not some_busy:
                self._pace.told()
                return not some_failed
            self._writer.wait(_LOOK_EVERY_S)

    def save_end(self, position: Position, step: int, epoch: int) -> bool:
        """All epochs are over: save what may be the last checkpoint, and wait for it, since a process may leave without a word.
        Every rank must call it. Whether it was written."""
        if self._pace.is_off or step == 0:
            return False
        self.save(position, step, epoch)
        return self.settle()

    def close(self, position: Position, step: int, epoch: int, *, failed: bool, is_saved: bool = False) -> None:
        """The script is over: save the last checkpoint. Unless the script failed, every rank must call it.

        Args:
            position: where the run is.
            step: the last one.
            epoch: the last one.
            failed: whether the script has.
            is_saved: whether nothing has changed since ``save_end``.
        """
        try:
            if is_saved and not failed and self.settle():
                if self._is_main:
                    self._store.mark_finished(step)
            elif failed:
                self._writer.wait(_LAST_WORDS_S)  # what was saved before the failure is sound
                self._read_results()
            else:
                self._save_last(position, step, epoch)
        finally:
            self._writer.close()

    def _save_last(self, position: Position, step: int, epoch: int) -> None:
        if self._pace.is_off or step == 0:  # nothing but the best weights can be under way, which rank 0 writes alone
            self._writer.wait()
            self._read_results()
            return
        if not self._save_for_good(position, step, epoch, finished=True) and self._is_main:
            _print(
                f"the end of the run could not be saved in {self._store.directory}. The same command resumes from the newest "
                "checkpoint when there is room."
            )

    # The best

    def keep_best(self, value: float, mode: str, step: int, epoch: int) -> bool:
        """Keep the weights if the value is better than all before. Every rank must call it, with the same value."""
        if mode not in ("min", "max"):
            raise ConfigError(f"best(mode={mode!r}): choose one of min, max")
        compare_ranks("values for team.best()", [f"{value!r}, {mode}"], self._collectives, _OF_ALL_RANKS)
        if math.isnan(value) or (
            self._state.best is not None and (value <= self._state.best if mode == "max" else value >= self._state.best)
        ):
            return False
        self._state.best = value
        self.settle()
        manifest = Manifest(
            kind="weights",
            step=step,
            epoch=epoch,
            time_s=time.time(),
            metric=value if math.isfinite(value) else None,
            objects=self._state.describe_objects(),
            **self._origin(),
        )
        parts = [self._state.weights(), *({} for _ in range(1, self._collectives.size))]
        weights = gather_full(parts, self._collectives.rank)
        if self._is_main:  # alone: the weights are the same everywhere, and nobody need agree on trying again
            job = self._job(manifest, weights, {}, self._staging_of_best)
            self._best_job = replace(job, world_size=1)
            self._writer.submit(self._best_job)
        return True

    def _retry_best(self) -> None:
        if self._best_job is not None and not self._writer.is_busy and time.monotonic() >= self._best_retry_at:
            self._writer.submit(self._best_job)


def _print(warning: str) -> None:
    with contextlib.suppress(OSError):  # what is printed may go to a file on the disk that is full
        print(f"lockstep: WARNING: {warning}", file=sys.stderr, flush=True)


def _apart(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    value, found = take_apart(tree, name)
    tensors.update(found)
    return value
