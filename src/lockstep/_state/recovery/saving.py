"""Saving checkpoints of a run: when, what, and which rank writes which part."""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

import torch
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._base.errors import CheckpointError, ConfigError
from lockstep._base.escape_control import escape_control
from lockstep._base.stopping import (
    INTERRUPTED_STATUS,
    REQUEUE_STATUS,
    UNSAVED_STATUS,
    Interrupted,
    Stopped,
    StopWatch,
    is_launched,
    say,
)
from lockstep._journal.writer import EventWriter
from lockstep._listener import Listener, Stage
from lockstep._state.checkpoint.schedule import CheckpointSchedule
from lockstep._state.checkpoint.store import Store, step_of
from lockstep._state.checkpoint.writer import Writer, Written
from lockstep._state.recovery.position import ScriptPosition
from lockstep._state.recovery.run_state import RunState
from lockstep._state.recovery.snapshots import Snapshots
from lockstep._state.recovery.unresumable import Unresumable
from lockstep._state.rundir.fixed_settings import FixedSettings
from lockstep._world.comm.agreement import compare_ranks
from lockstep._world.comm.collectives import Collectives

_OF_ALL_RANKS = "Give a value that is the same on all ranks: a result of team.evaluate(), batch[name] or loader.averages"
_LAST_WORDS_S = 1.0
"""Seconds that a failing run waits for a checkpoint that is being written."""
_LOOK_EVERY_S = 0.02
_SIGNAL_RANGE = 128
"""Larger than any signal number."""


class Saver(Listener):
    """Saves checkpoints of a run, and keeps its best weights.

    Args:
        config: the settings, with the interval and number of checkpoints. (Of a traced run only the
            best weights are saved, and the state when it is asked to stop.)
        token: identifies this launch, the same on every rank.
        journal: receives an event for each checkpoint.
        stop_watch: records that this rank is asked to stop.
    """

    stage = Stage.SAVING

    def __init__(
        self,
        store: Store,
        config: RunConfig,
        token: str,
        birth: FixedSettings,
        state: RunState,
        collectives: Collectives,
        journal: EventWriter,
        stop_watch: StopWatch,
    ) -> None:
        self.is_due = False
        """Whether a checkpoint is to be saved before the next step. The same on every rank."""
        self.has_stopped = False
        """Whether the run is stopping because it was asked to."""
        self.pause_s = 0.0
        """For how long training has stood still for checkpoints."""
        self.is_paused = False
        """Whether training stands still for a checkpoint now."""
        self._store = store
        self._state = state
        self._snapshots = Snapshots(config, token, birth, state, collectives)
        self._unresumable = Unresumable(state)
        self._collectives = collectives
        self._journal = journal
        self._is_main = collectives.rank == 0
        self._stop_watch = stop_watch
        self._schedule = CheckpointSchedule(config.interval, self._exchange, is_alone=collectives.size == 1)
        self._writer = Writer(store)
        self._last_written: int | None = None
        self._copies: int | None = None
        """The step of the checkpoint that is being copied."""
        self._pauses_s: dict[int, float] = {}
        self._best_is_lost = False
        """Whether this rank could not write its part of the newest best weights."""
        self._is_first_step = False
        """Whether a pass has begun, and no step of it has ended."""

    # When

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._is_first_step = True

    @override
    def tick(self, step: int) -> None:
        """Every rank must call it."""
        if self._is_first_step:  # of a pass: from now on Ctrl-C would lose steps
            self._is_first_step = False
            self._stop_watch.begin_interrupts()
        if not self._snapshots.is_rehearsed and not self._schedule.is_off:
            self._snapshots.rehearse()
        if self._writer.ended:
            self._read_results()
        stop_request = 0 if self._stop_watch.received is None else self._stop_request()
        is_due, failed = self._schedule.tick(step, is_busy=self._writer.job is not None, stop_request=stop_request)
        self.is_due = self.is_due or is_due
        if failed:
            self._writer.give_up()

    def check_stop(self) -> None:
        """At the end of an epoch, tail included, check whether the run must stop here. Every rank
        must call it."""
        self.is_due = self._schedule.exchange_stop(self._stop_request()) or self.is_due

    def _stop_request(self) -> int:
        """For ``CheckpointSchedule``: 0, or a number that encodes the signal, and is largest for
        the lowest rank."""
        received = self._stop_watch.received
        return 0 if received is None else (self._collectives.size - self._collectives.rank) * _SIGNAL_RANGE + received

    def _exchange(self, numbers: list[int]) -> list[int]:
        if self._collectives.size == 1:
            return numbers
        largest: list[int] = self._collectives.all_reduce(torch.tensor(numbers, dtype=torch.int64), "max").tolist()
        return largest

    # What

    @property
    def num_saved(self) -> int:
        """Number of checkpoints that this launch has begun to write. The same on every rank."""
        return self._snapshots.num_taken

    @property
    def is_stopping(self) -> bool:
        """Whether the run was asked to stop: then it ends when the checkpoint that is due is saved.
        The same on every rank."""
        return self._schedule.stop_request > 0

    def save_due(self, position: ScriptPosition, step: int, epoch: int) -> None:
        """Save the checkpoint that is due. Every rank must call it.

        Raises:
            Stopped: the run was asked to stop, and the checkpoint is on disk (or could not be
                written, which is reported).
        """
        if self.is_stopping:
            self._stop(position, step, epoch)
        self.save(position, step, epoch)

    def _stop(self, position: ScriptPosition, step: int, epoch: int) -> NoReturn:
        ranks_above, number = divmod(self._schedule.stop_request, _SIGNAL_RANGE)
        signaled_rank, name = self._collectives.size - ranks_above, signal.Signals(number)
        self._stop_watch.say(name, signaled_rank)
        self.has_stopped = True
        # at step 0 there is nothing to lose
        saved = step == 0 or self._save_for_good(position, step, epoch)
        self._journal.write("preempted", step=step, signal=name.name, rank=signaled_rank, saved=saved)
        if self._is_main and saved:
            command = "." if self._collectives.size > 1 else f": {shlex.join(sys.orig_argv)}"
            # the launcher says which
            remedy = "" if is_launched() else f" The same command resumes it{command}"
            say(f"run {self._store.run_dir} is saved after step {step}.{remedy}")
        elif self._is_main:
            newest = f"step {self._last_written}" if self._last_written else "the newest checkpoint, if any"
            say(
                f"could NOT save run {self._store.run_dir} after step {step}; exiting with status {UNSAVED_STATUS}. Free "
                f"disk space and repeat the command to resume from {newest}."
            )
        is_interrupt = number == signal.SIGINT
        status = (INTERRUPTED_STATUS if is_interrupt else REQUEUE_STATUS) if saved else UNSAVED_STATUS
        self._stop_watch.exit_with(status)
        raise (Interrupted if is_interrupt else Stopped)(status)

    def _save_for_good(self, position: ScriptPosition, step: int, epoch: int, *, finished: bool = False) -> bool:
        """Save the last checkpoint of this launch and wait for it; returns whether it was written.
        Every rank must call it."""
        self.save(position, step, epoch, finished=finished)
        return self.wait_until_written()

    @property
    def in_progress(self) -> int | None:
        """The step of the checkpoint that this rank copies or writes; None: none. Any thread may
        ask."""
        return self._copies or self._writer.step

    def save(self, position: ScriptPosition, step: int, epoch: int, *, finished: bool = False) -> None:
        """Copy the run's current state and start writing it. Every rank must call it."""
        with self._pause():
            self._save(position, step, epoch, finished=finished)

    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        was_paused, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = was_paused

    def _save(self, position: ScriptPosition, step: int, epoch: int, *, finished: bool) -> None:
        began = time.perf_counter()
        self.wait_until_written()
        self._copies = step
        self.is_due = False
        self._schedule.begin_save()
        self._writer.submit(self._snapshots.take(position, step, epoch, finished=finished))
        if self._is_main:
            self._unresumable.warn(step)
        self._copies = None
        self._pauses_s[step] = time.perf_counter() - began
        self.pause_s += self._pauses_s[step]

    # Results

    def _read_results(self) -> bool:
        """Report what has been written since the last call. Returns False if anything failed."""
        well = True
        for result in self._writer.results():
            step, is_best = result.manifest.step, result.manifest.kind == "weights"
            held_s = None if is_best else self._pauses_s.pop(step, None)
            if is_best:
                self._best_is_lost = bool(result.error)
            # then rank 0 is told to give up, too
            if not is_best or (result.error and result.num_writers > 1):
                self._schedule.written(well=not result.error)
                well = well and not result.error
            if result.error:
                self._warn(result)
            elif result.path is not None:
                self._last_written = self._last_written if is_best else step
                self._journal.write(
                    "checkpoint",
                    step=step,
                    kind=result.manifest.kind,
                    name=result.path.name,
                    held_s=held_s,
                    wall_s=result.wall_s,
                )
        return well

    def _warn(self, result: Written) -> None:
        label = "the best weights" if result.manifest.kind == "weights" else "the checkpoint"
        sound = None
        with contextlib.suppress(
            OSError, CheckpointError
        ):  # what keeps it from being written may keep it from being looked for
            sound = self._store.newest()  # written by any launch, whatever rank this is
        newest = "there is none before it" if sound is None else f"the one of step {step_of(sound)} stays the newest"
        _print(
            f"rank {self._collectives.rank} could not write {label} of step {result.manifest.step} in {self._store.run_dir}: "
            f"{result.error}. Training continues without it ({newest})."
        )
        self._journal.write("checkpoint_failed", step=result.manifest.step, error=result.error)

    def newest_written(self) -> int | None:
        """The step of the newest complete checkpoint, after a short wait for what is being written;
        None: there is none. Local; any thread may call it while training stands still."""
        self._writer.wait(_LAST_WORDS_S)
        newest = self._store.newest()
        return None if newest is None else step_of(newest)

    def wait_until_written(self) -> bool:
        """Wait until nothing is being written; returns whether all ranks succeeded. Every rank must
        call it."""
        with self._pause():
            return self._wait_until_written()

    def _wait_until_written(self) -> bool:
        well = not self._schedule.has_failed  # of which the others may not know yet
        while True:
            is_busy = self._writer.is_busy
            well = self._read_results() and well
            some_busy, some_failed = self._exchange([is_busy, not well])
            if some_failed:
                self._writer.give_up()  # else rank 0 would wait for parts that never come
            if not some_busy:
                self._schedule.acknowledge()
                return not some_failed
            self._writer.wait(_LOOK_EVERY_S)

    def save_end(self, position: ScriptPosition, step: int, epoch: int) -> bool:
        """After the last epoch: save what may be the last checkpoint, and wait for it, since a
        process may exit without notice. Returns whether it was written. Every rank must call it."""
        if self._schedule.is_off or step == 0:
            return False
        self.save(position, step, epoch)
        is_saved = self.wait_until_written()
        self._stop_watch.end_interrupts()
        return is_saved

    def close(self, position: ScriptPosition, step: int, epoch: int, *, failed: bool, is_saved: bool = False) -> bool:
        """At the end of the script, save the last checkpoint. Unless the script failed, every rank
        must call it.

        Returns whether all that was to be saved is; True if the script failed.

        Args:
            failed: whether the script has failed.
            is_saved: whether nothing has changed since ``save_end``.
        """
        try:
            if failed:
                self._writer.wait(_LAST_WORDS_S)  # a checkpoint from before the failure is valid
                self._read_results()
                return True
            has_end = (is_saved and self.wait_until_written() and self._mark_finished(step)) or self._save_last(
                position, step, epoch
            )
            return self._write_best(step) and has_end
        finally:
            self._writer.close()

    def _mark_finished(self, step: int) -> bool:
        """Record that the script ended with the checkpoint of this step; returns whether that is on
        disk. Every rank must call it."""
        well = True
        if self._is_main:
            try:
                self._store.mark_finished(step)
            except (OSError, CheckpointError) as error:
                well = False
                _print(f"the checkpoint of step {step} in {self._store.run_dir} could not be marked as the last: {error}")
        (some_failed,) = self._exchange([not well])
        return not some_failed

    def _save_last(self, position: ScriptPosition, step: int, epoch: int) -> bool:
        if self._schedule.is_off or step == 0:
            return True
        well = self._save_for_good(position, step, epoch, finished=True)
        if not well and self._is_main:
            _print(
                f"the end of the run could not be saved in {self._store.directory}. The same command resumes from the newest "
                "checkpoint when there is room."
            )
        return well

    # Best weights

    def is_best(self, value: float, mode: str) -> bool:
        """Whether the value is the best so far. Every rank must call it, with the same value."""
        if mode not in ("min", "max"):
            raise ConfigError(f"best(mode={mode!r}): choose one of min, max")
        compare_ranks("values for team.best()", [f"{value!r}, {mode}"], self._collectives, _OF_ALL_RANKS)
        best = self._state.best
        return not math.isnan(value) and (best is None or (value > best if mode == "max" else value < best))

    def keep_best(self, value: float, step: int, epoch: int) -> None:
        """Save the weights as the best so far. Every rank must call it, with the same value."""
        self._state.best, self._state.best_epoch = value, epoch
        self.wait_until_written()
        job = self._snapshots.take_weights(value, step, epoch)
        if job is not None:
            self._writer.submit(job)

    def _write_best(self, step: int) -> bool:
        """At the end, wait for the best weights; returns whether they are written. Every rank must
        call it, if a step was taken."""
        if step > 0:
            self.wait_until_written()
        else:
            self._writer.wait()
            self._read_results()
        if self._best_is_lost and self._is_main:
            _print(f"the best weights of the run could not be saved in {self._store.run_dir}.")
        return not any(self._exchange([self._best_is_lost])) if step > 0 else not self._best_is_lost


def _print(warning: str) -> None:
    with contextlib.suppress(OSError):  # the output may go to the full disk, too
        print(escape_control(f"lockstep: WARNING: {warning}"), file=sys.stderr, flush=True)
