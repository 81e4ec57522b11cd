"""Saves checkpoints of a run: when, and what happens with the results of the writer.

::

    end of a step     is one due, on any rank? (CheckpointSchedule; one of the topics that the
                      ranks agree on in ``_loop/between.py``)
    end of an epoch   check_stop: has any rank received a signal?
    before the next   the loop calls save_due -> save: wait for the writer, copy the state,
    step or epoch     give the copies to the writer's thread (training continues)
    later steps       read the writer's results: an event, or a warning
    end of the script save_end, close: save, wait until all ranks have written

The decision is made when the loader is asked for the next batch, and the save follows when that
batch exists. After the last batch of a pass, the code behind the loop (an evaluation, a schedule)
still belongs to the epoch, so in ``team.epochs()`` the save waits for the end of the epoch.

A failed write never ends training. The steps since the last good checkpoint are lost only if the
run is then killed, while an error would lose them for certain. At the end of the script there is no
later checkpoint, so a failure there becomes the exit status.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch
from typing_extensions import override

from lockstep._base.config import RunConfig
from lockstep._base.errors import CheckpointError, ConfigError
from lockstep._base.reports import warn
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
from lockstep._events.writer import EventWriter
from lockstep._listener import Listener
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

_OF_ALL_RANKS = "Pass a value that is the same on all ranks: a result of team.evaluate(), batch[name] or loader.averages"
_LAST_WORDS_S = 1.0
"""The number of seconds that a failing run waits for a checkpoint that is being written."""
_LOOK_EVERY_S = 0.02
_REHEARSAL = 3
"""The exchange in which a checkpoint is rehearsed, unless one is due sooner. The first two follow
the first steps, which have other looks at the state. The third is about half a second, or one
step, later (see ``CheckpointSchedule``)."""
_SIGNAL_RANGE = 128
"""A number above all signal numbers (1 to 64 on Linux)."""


class Saver(Listener):
    """The saving of a run's checkpoints and best weights. A topic on which the ranks agree between
    steps.

    Args:
        config: the settings, with the interval and number of checkpoints. (A traced run saves only
            its best weights, and its state when it is asked to stop.)
        token: identifies this launch, the same on every rank.
        events: receives an event for each checkpoint.
        stop_watch: records that this rank is asked to stop.
    """

    def __init__(
        self,
        store: Store,
        config: RunConfig,
        token: str,
        birth: FixedSettings,
        state: RunState,
        collectives: Collectives,
        events: EventWriter,
        stop_watch: StopWatch,
    ) -> None:
        self.must_save = False
        """Whether a checkpoint must be saved before the next step. The same on every rank."""
        self.has_stopped = False
        """Whether the run is stopping because it was asked to."""
        self.pause_s = 0.0
        """The number of seconds for which training has paused for checkpoints."""
        self.is_paused = False
        """Whether training pauses for a checkpoint now."""
        self._store = store
        self._state = state
        self._snapshots = Snapshots(config, token, birth, state, collectives)
        self._unresumable = Unresumable(state)
        self._collectives = collectives
        self._events = events
        self._is_main = collectives.rank == 0
        self._stop_watch = stop_watch
        self._is_alone = collectives.size == 1
        self._schedule = CheckpointSchedule(config.interval, is_alone=self._is_alone)
        self._writer = Writer(store)
        self._last_written: int | None = None
        self._copies: int | None = None
        """The step of the checkpoint that is being copied; None: none is."""
        self._pauses_s: dict[int, float] = {}
        self._best_is_lost = False
        """Whether this rank could not write its part of the newest best weights."""
        self._num_exchanges = 0
        """The number of calls of ``propose``. The same on every rank."""
        self._is_first_step = False
        """Whether a pass has begun, and none of its steps has finished."""

    # When

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        self._is_first_step = True

    def is_due(self, step: int) -> bool:
        """Whether the ranks ask each other after this step whether to save. The same on every
        rank."""
        if self._is_alone and self._stop_watch.received is not None:
            return True
        return self._schedule.is_due(step)

    def propose(self, step: int) -> list[int]:
        """Returns the numbers of this rank for the schedule."""
        # Before the first step there is nothing to save, and Ctrl-C should just end the process.
        # From now on it would lose steps.
        if self._is_first_step:
            self._is_first_step = False
            self._stop_watch.begin_interrupts()
        self._num_exchanges += 1
        if self._num_exchanges == 1 and not self._schedule.is_off:
            self._snapshots.accept_first_step()
        if self._writer.ended:
            self._read_results()
        return self._schedule.propose(step, is_busy=self._writer.job is not None, stop_request=self._stop_request())

    def settle(self, step: int, largest: Sequence[int]) -> None:
        """Takes the largest numbers of all ranks: whether to save before the next step."""
        # What is due stays due until it is saved, so this takes nothing back.
        self.must_save, failed = self._schedule.settle(step, largest)
        if failed:
            self._writer.give_up()
        is_time = self.must_save or self._num_exchanges >= _REHEARSAL
        if is_time and not self._snapshots.is_rehearsed and not self._schedule.is_off:
            self._snapshots.rehearse()

    def check_stop(self) -> None:
        """Checks whether the run must stop at the end of an epoch, including the code after its
        loop. Every rank must call it."""
        (self._schedule.stop_request,) = self._exchange([self._stop_request()])
        self.must_save = self.must_save or self.is_stopping

    def _stop_request(self) -> int:
        """Returns 0, or a number that encodes the signal and is largest for the lowest rank."""
        # The ranks exchange a maximum, so one number must carry both: (size - rank) * 128 + signal.
        # Rank 0 of 4 with SIGTERM (15) gives 527, rank 3 gives 143.
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
        """The number of checkpoints that this launch has begun to write. The same on every rank."""
        return self._snapshots.num_taken

    @property
    def is_stopping(self) -> bool:
        """Whether the run was asked to stop. It exits when the due checkpoint is saved. The same
        on every rank."""
        return self._schedule.stop_request > 0

    def save_due(self, position: ScriptPosition, step: int, epoch: int) -> None:
        """Saves the checkpoint that is due. Every rank must call it.

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
        # Step 0 has nothing to lose: the resumed run begins there anyway.
        saved = step == 0 or self._save_for_good(position, step, epoch)
        self._events.write("preempted", step=step, signal=name.name, rank=signaled_rank, saved=saved)
        if self._is_main and saved:
            command = "." if self._collectives.size > 1 else f": {shlex.join(sys.orig_argv)}"
            # The launcher prints the command: this process sees the worker's command line only.
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
        """Saves the last checkpoint of this launch and waits for it. Returns whether it was
        written. Every rank must call it."""
        self.save(position, step, epoch, finished=finished)
        return self.wait_until_written()

    @property
    def in_progress(self) -> int | None:
        """The step of the checkpoint that this rank copies or writes; None: none. Any thread may
        read it."""
        return self._copies or self._writer.step

    def save(self, position: ScriptPosition, step: int, epoch: int, *, finished: bool = False) -> None:
        """Copies the run's current state and starts writing it. Every rank must call it."""
        with self._pause():
            self._save(position, step, epoch, finished=finished)

    # Nested: a save waits for the writer, and each of the two is a pause.
    @contextlib.contextmanager
    def _pause(self) -> Iterator[None]:
        was_paused, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = was_paused

    def _save(self, position: ScriptPosition, step: int, epoch: int, *, finished: bool) -> None:
        began = time.perf_counter()
        # The staging memory has room for one checkpoint, which the writer may still read.
        self.wait_until_written()
        self._copies = step
        self.must_save = False
        self._schedule.begin_save()
        self._writer.submit(self._snapshots.take(position, step, epoch, finished=finished))
        if self._is_main:
            self._unresumable.warn(step)
        self._copies = None
        self._pauses_s[step] = time.perf_counter() - began
        self.pause_s += self._pauses_s[step]

    # Results

    def _read_results(self) -> bool:
        """Reports the writes that finished since the last call. Returns False if any failed."""
        well = True
        for result in self._writer.results():
            step, is_best = result.manifest.step, result.manifest.kind == "weights"
            held_s = None if is_best else self._pauses_s.pop(step, None)
            if is_best:
                self._best_is_lost = bool(result.error)
            # One rank's failure to write best weights counts, too: rank 0 must stop waiting for its
            # part.
            if not is_best or (result.error and result.num_writers > 1):
                self._schedule.written(well=not result.error)
                well = well and not result.error
            if result.error:
                self._warn(result)
            elif result.path is not None:
                self._last_written = self._last_written if is_best else step
                self._events.write(
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
        # The cause of the failed write (a lost mount) may also prevent the search.
        with contextlib.suppress(OSError, CheckpointError):
            # on disk: ranks other than 0 do not know what was committed
            sound = self._store.newest()
        newest = "there is none yet" if sound is None else f"the newest is that of step {step_of(sound)}"
        warn(
            f"rank {self._collectives.rank} could not write {label} of step {result.manifest.step} in {self._store.run_dir}: "
            f"{result.error}. Training continues without this checkpoint ({newest}).",
            code="checkpoint-not-written",
        )
        self._events.write("checkpoint_failed", step=result.manifest.step, error=result.error)

    def newest_written(self) -> int | None:
        """Returns the step of the newest complete checkpoint, after a short wait for the writer;
        None: there is none. Local. Any thread may call it while training pauses."""
        self._writer.wait(_LAST_WORDS_S)
        newest = self._store.newest()
        return None if newest is None else step_of(newest)

    def wait_until_written(self) -> bool:
        """Waits until nothing is being written. Returns whether all ranks succeeded. Every rank
        must call it."""
        with self._pause():
            return self._wait_until_written()

    def _wait_until_written(self) -> bool:
        well = not self._schedule.has_failed  # a failure here that the other ranks may not know yet
        while True:
            is_busy = self._writer.is_busy
            well = self._read_results() and well
            some_busy, some_failed = self._exchange([is_busy, not well])
            if some_failed:
                # otherwise rank 0 would wait for parts that are never written
                self._writer.give_up()
            if not some_busy:
                self._schedule.acknowledge()
                return not some_failed
            # Not without a timeout: a rank that waits here takes part in no exchange, and rank 0
            # would never learn of another rank's failure.
            self._writer.wait(_LOOK_EVERY_S)

    def save_end(self, position: ScriptPosition, step: int, epoch: int) -> bool:
        """Saves what may be the last checkpoint after the last epoch, and waits for it, since the
        process may exit at any time (``os._exit``). Returns whether it was written. Every rank must
        call it."""
        if self._schedule.is_off or step == 0:
            return False
        self.save(position, step, epoch)
        is_saved = self.wait_until_written()
        self._stop_watch.end_interrupts()
        return is_saved

    def close(self, position: ScriptPosition, step: int, epoch: int, *, failed: bool, is_saved: bool = False) -> bool:
        """Saves the last checkpoint at the end of the script. Unless the script failed, every rank
        must call it. Returns whether everything is saved; True if the script failed.

        Args:
            failed: whether the script has failed.
            is_saved: whether nothing has changed since ``save_end``.
        """
        try:
            if failed:
                # A checkpoint from before the failure is valid. No new one is saved: the state may
                # be in the middle of a step, and other ranks may not reach a collective.
                self._writer.wait(_LAST_WORDS_S)
                self._read_results()
                return True
            has_end = (is_saved and self.wait_until_written() and self._mark_finished(step)) or self._save_last(
                position, step, epoch
            )
            return self._write_best(step) and has_end
        finally:
            self._writer.close()

    def _mark_finished(self, step: int) -> bool:
        """Records that the script ended with the checkpoint of this step. Returns whether that is
        on disk. Every rank must call it."""
        well = True
        if self._is_main:
            try:
                self._store.mark_finished(step)
            except (OSError, CheckpointError) as error:
                well = False
                warn(
                    f"could not mark the checkpoint of step {step} in {self._store.run_dir} as the last: {error}",
                    code="end-not-marked",
                )
        (some_failed,) = self._exchange([not well])
        return not some_failed

    def _save_last(self, position: ScriptPosition, step: int, epoch: int) -> bool:
        if self._schedule.is_off or step == 0:
            return True
        well = self._save_for_good(position, step, epoch, finished=True)
        if not well and self._is_main:
            warn(
                f"could not save the end of the run in {self._store.directory}. Free disk space and repeat the command to "
                "resume from the newest checkpoint.",
                code="end-not-saved",
            )
        return well

    # Best weights

    def is_best(self, value: float, mode: str) -> bool:
        """Returns whether the value is the best so far. Every rank must call it, with the same
        value."""
        if mode not in ("min", "max"):
            raise ConfigError(f"best(mode={mode!r}): mode must be min or max", code="best-mode")
        compare_ranks("values for team.best()", [f"{value!r}, {mode}"], self._collectives, _OF_ALL_RANKS)
        best = self._state.best
        return not math.isnan(value) and (best is None or (value > best if mode == "max" else value < best))

    def keep_best(self, value: float, step: int, epoch: int) -> None:
        """Saves the weights as the best so far. Every rank must call it, with the same value."""
        self._state.best, self._state.best_epoch = value, epoch
        self.wait_until_written()
        job = self._snapshots.take_weights(value, step, epoch)
        if job is not None:
            self._writer.submit(job)

    def _write_best(self, step: int) -> bool:
        """Waits for the best weights at the end. Returns whether they are written. Every rank must
        call it, if a step was taken."""
        # Without a step, ranks may end at different places, so nothing is exchanged.
        if step > 0:
            self.wait_until_written()
        else:
            self._writer.wait()
            self._read_results()
        if self._best_is_lost and self._is_main:
            warn(f"could not save the best weights of the run in {self._store.run_dir}.", code="best-not-saved")
        return not any(self._exchange([self._best_is_lost])) if step > 0 else not self._best_is_lost
