"""The position of this process in the run: epoch, pass over a loader, and step.

What contains what, and which object hears of it::

    run
      section        a loop over team.epochs(), or the code between two  Resumption
        epoch                                                            EpochLoop -> Loop
          pass       a loop over a prepared loader                       PreparedLoader -> Loop
            step     one batch of the loader                             PreparedLoader -> Loop
              phase  a loop over batch.shards                            Shards -> Phases
                shard, micro-batch                                       Shards -> Phases

The script's loops drive everything. Each is over an iterator of lockstep, which reports its next
item and its end; nothing calls the script. One loader leads: its pass counts the steps. A loader
that is iterated within that pass *follows*: it only yields batches.

Ranks take the same steps without asking each other, since each phase ends in an exchange. They ask
only where no phase has shown that all are here: at the end of a pass, before an evaluation, and
after a pass that was left early (``loop.meeting``)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from time import perf_counter
from types import FrameType
from typing import Any

from typing_extensions import override

from lockstep._base.errors import ConfigError, DataError, MismatchError, UsageError
from lockstep._base.reports import NOTICE, Report, publish, warn
from lockstep._base.stopping import Ended, say
from lockstep._data.loader import Driver, PreparedLoader
from lockstep._data.streams import Purpose, reseed
from lockstep._data.torch_loader import length_of
from lockstep._events.measure.split import LOADING
from lockstep._listener import Listeners
from lockstep._loop.between import Agreement
from lockstep._loop.departure import departure, passed_over
from lockstep._loop.epochs import EpochLoop, Epochs
from lockstep._loop.hosted import HostedEpochs
from lockstep._loop.meeting import Meetings
from lockstep._loop.phases import Phases
from lockstep._plan.shards import StepPlan
from lockstep._state.recovery.divergence import DivergenceCheck
from lockstep._state.recovery.position import Resumption, ScriptPosition
from lockstep._state.recovery.resuming import Restorer
from lockstep._state.recovery.saving import Saver

_OWN_RESUMING = (
    "If your script also restores its own start_epoch, as in `range(start_epoch, n)`, it stops too early: let lockstep handle "
    "resuming, or start a new run each time with --fresh (fresh=True)."
)


class Loop(Driver):
    """The position of this process in the run, which prepared loaders advance through ``Driver``.

    Args:
        phases: runs the phases of each step.
        saver: saves checkpoints, at positions that the loop decides.
        divergence: checks now and then, and before each checkpoint, that the ranks have not
            diverged.
        restorer: restores the checkpoint from which the run resumes; None: the run is new.
        agreement: what the ranks agree on between steps.
        listeners: notified of passes and steps.
        meetings: the meetings of this process with the other ranks.
        is_main: whether this is rank 0, which prints.
    """

    def __init__(
        self,
        phases: Phases,
        saver: Saver,
        divergence: DivergenceCheck,
        restorer: Restorer | None,
        agreement: Agreement,
        listeners: Listeners,
        meetings: Meetings,
        *,
        is_main: bool,
    ) -> None:
        self.phases = phases
        self.same_data = phases.parts.peers.same_data
        self.meetings = meetings
        self.epoch = 0
        self.epoch_shown = 0
        """The number of the epoch, from 0, for displays and records; outside of ``epochs`` too."""
        self.num_epochs: int | None = None
        self._saver = saver
        self._divergence = divergence
        self._restorer = restorer
        checkpoint = None if restorer is None else restorer.checkpoint
        self.resumption = (
            Resumption(self._restore)
            if checkpoint is None
            else Resumption(
                self._restore,
                checkpoint.position,
                is_end=checkpoint.manifest.finished,
                may_shorten=restorer is not None and "epochs" in restorer.allow,
            )
        )
        self._resumed_after = 0
        """The step after which this launch has resumed."""
        self._end: tuple[int, int] | None = None
        """The step at the end of the last loop over epochs, and the digest of the state saved
        there."""
        self.has_run_out = False
        """Whether the last loop over epochs ran through, and nothing was trained since."""
        self.left_by_error: str | None = None
        """The line of the loop over epochs that an error has left, if nothing was trained since;
        None: there is none."""
        self._was_ended = False
        """Whether an instrument stopped the script."""
        self._open_epochs: weakref.ref[EpochLoop] | None = None
        """The newest loop over epochs, which the script may have left although it still refers to
        it."""
        self._hosted: HostedEpochs | None = None
        """The newest loop over epochs that a host library drives. (A strong reference: the library
        ends it by a call, not by dropping its last reference.)"""
        self._agreement = agreement
        self._listeners = listeners
        self._is_main = is_main
        self._has_warned = False
        self._has_gone_on = False
        """Whether this launch has begun a pass."""
        self._leader: PreparedLoader | None = None
        """The loader whose pass counts the steps."""
        self._num_in_pass = 0
        self._num_passes = 0
        self._followers: dict[PreparedLoader, int] = {}
        """The open passes that follow, by loader, with the number of the leading pass in which each
        last yielded a batch. Between two leading passes it is unknown whether
        the script will continue or restart them, so no checkpoint is saved there."""
        self._has_warned_of_idle = False
        self._agreement_pending = False
        """Whether the ranks have yet to agree after the last step, because the loop was left within
        that step."""
        self._error_before = getattr(sys, "last_value", None)

    @property
    def step(self) -> int:
        """The number of the current step; between steps, of the last one."""
        return self.phases.step

    def _restore(self, is_final: bool) -> None:
        assert self._restorer is not None
        if not self.resumption.is_in_epochs and self._restorer.script_has_restored():
            self._warn_of_passes(
                "the script restored an optimizer itself, before this run resumes", "script-restored", is_warning=True
            )
        self._restorer.apply(is_final=is_final)
        if is_final:
            idle = [loader for loader in self._restorer.state.loaders if loader.is_idle]
            # abandoned with the pass, as they would have been
            self._followers.update(dict.fromkeys(idle, self._num_passes))
        manifest = self._restorer.checkpoint.manifest
        self.phases.step = self._resumed_after = manifest.step
        # Where no epoch begins any more, the code after the last one still reads its number.
        self.epoch_shown = manifest.epoch
        if self._restorer.checkpoint.position.section > 0:
            self.epoch = manifest.epoch

    # Epochs

    def epochs(self, num_epochs: int) -> Epochs:
        """Returns the epochs that are left; all of this process's code between two of them belongs
        to the earlier one."""
        if num_epochs < 0:
            raise ConfigError(f"epochs({num_epochs}): it must be 0 or more.", code="negative-epochs")
        return Epochs(num_epochs, lambda epochs: EpochLoop(self._turns(epochs), self._begin_loop, self._leave_by_error))

    def hosted_epochs(self, num_epochs: int) -> HostedEpochs:
        """Returns the epochs that are left, for the loop of a host library, as
        ``Team.hosted_epochs`` describes."""
        if num_epochs < 0:
            raise ConfigError(f"hosted_epochs({num_epochs}): it must be 0 or more.", code="negative-epochs")
        self._end_open_epochs()
        target = self.resumption.target
        first = self.resumption.enter_epochs(num_epochs, at_once=True)
        has_arrived = target is not None and self.resumption.target is None
        self.has_run_out, self.left_by_error = False, None
        is_within = has_arrived and target is not None and target.in_pass and first < num_epochs
        is_past = self.resumption.target is not None and first >= num_epochs
        self._hosted = HostedEpochs(num_epochs, first, self, is_within=is_within, is_past=is_past)
        return self._hosted

    def _turns(self, epochs: Epochs) -> Iterator[int]:
        num_epochs = epochs.num_epochs
        first = max(self.resumption.enter_epochs(num_epochs), epochs.next)
        self.has_run_out, self.left_by_error = False, None
        completed = False
        try:
            for epoch in range(first, num_epochs):
                # Before the epoch runs: if the script breaks out of it, a later loop over the same
                # object continues with the next epoch.
                epochs.next = epoch + 1
                self.begin_epoch(epoch, num_epochs)
                yield epoch
                self.end_epoch(epoch)
            # While the run is catching up, the loop may be one of several over the same object, and
            # a later one runs the epochs that are left.
            if self.resumption.target is None:
                epochs.next = num_epochs
            completed = True
        finally:
            self.leave_epochs(max(first, num_epochs) if completed else None)

    def _begin_loop(self, loop: EpochLoop) -> None:
        self._end_open_epochs()
        self._open_epochs = weakref.ref(loop)

    def _end_open_epochs(self) -> None:
        """Ends the loop over epochs that the script has left and still refers to (by ``iterator =
        iter(team.epochs(n))``)."""
        if (loop := self._open_loop()) is not None:
            loop.leave()

    def _open_loop(self) -> EpochLoop | HostedEpochs | None:
        if self._hosted is not None and not self._hosted.is_over:
            return self._hosted
        return None if self._open_epochs is None else self._open_epochs()

    def _leave_by_error(self, frame: FrameType) -> None:
        if not self._was_ended:
            self.left_by_error = f"{frame.f_code.co_filename}, line {frame.f_lineno}"

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """Begins an epoch with its own random stream, so that a repeated epoch draws the same
        numbers."""
        self.num_epochs = num_epochs
        self.resumption.begin_epoch(epoch)
        self.epoch = self.epoch_shown = epoch
        self._reseed_between(epoch)

    def end_epoch(self, epoch: int) -> None:
        """Ends an epoch, and saves the checkpoint that is due, if any. Every rank must call it."""
        self.flush("the end of the epoch")
        # A checkpoint between epochs cannot be saved while a pass that follows is open:
        # the script may continue or restart it, and the position would not show which.
        self._saver.check_stop()
        if self._saver.must_save and self._leader is None and not self._followers:
            self._divergence.compare(self.step, f"at the end of epoch {epoch + 1}")
            self._saver.save_due(self.resumption.after_epoch(epoch), self.step, epoch)

    def leave_epochs(self, num_epochs: int | None) -> None:
        """Leaves the loop over epochs, after ``num_epochs``; None: left early."""
        self.resumption.leave_epochs(num_epochs)
        self.has_run_out = num_epochs is not None
        if num_epochs is None:
            self._divergence.leave_epochs()
        # Compared before it is saved, so that no checkpoint is made of ranks that differ.
        elif not self.resumption.is_catching_up and self.step > self._resumed_after:
            self._divergence.leave_epochs()
            self._divergence.compare(self.step, "after the last epoch")
            if self._saver.save_end(self.resumption.end(), self.step, self.epoch_shown):
                self._end = (self.step, self._divergence.digest())
        # a launch that resumes behind the loop has not drawn the numbers drawn inside it
        self._reseed_between(0)

    def _reseed_between(self, epoch: int) -> None:
        if self._leader is None:
            section, *_ = self.resumption.newest_pass()
            reseed(self.phases.parts.seed, Purpose.EPOCH, section, epoch)

    def _reseed_after_pass(self) -> None:
        """Begins the random stream of the code after a pass. It belongs to the pass, not to its
        last step, which a launch that skips the pass does not know: the numbers drawn there may
        decide what later passes learn."""
        reseed(self.phases.parts.seed, Purpose.TAIL, *self.resumption.newest_pass())

    # Passes

    @property
    @override
    def next_is_done(self) -> bool:
        """Whether ``skips`` would be true."""
        return self._leader is None and self.resumption.next_is_done

    @override
    def skips(self) -> bool:
        """Whether the next pass was completed before the run was interrupted: it is counted, and
        not made."""
        if self._leader is not None or not self.resumption.skips():
            return False
        if not self.resumption.is_in_epochs:
            self._warn_of_passes(
                "skipping the passes over the training loader made before the interruption", "passes-skipped"
            )
        self._reseed_after_pass()
        return True

    def _warn_of_passes(self, what: str, code: str, *, is_warning: bool = False) -> None:
        """Prints once how a script without ``team.epochs`` resumes."""
        if not self._has_warned and self._is_main:
            self._has_warned = True
            text = (
                f"{what}. Outside of team.epochs() the code around earlier passes runs again: use `for epoch in "
                f"team.epochs(n)`, which begins with the right epoch. {_OWN_RESUMING}"
            )
            publish(Report(kind=NOTICE, text=text, code=code, is_warning=is_warning))

    @override
    def enter(self, loader: Any) -> bool:
        """Begins a pass over a prepared loader. False: another pass leads, and this one counts
        no steps."""
        if self._leader is loader:  # the script has dropped its earlier iterator unfinished
            self.leave(loader, exhausted=False, failed=False)
        if self._leader is not None:
            return False
        self.flush()
        self.has_run_out, self.left_by_error = False, None
        self.resumption.begin_pass()
        self._say_that_it_goes_on()
        self._leader, self.meetings.left = loader, None
        self._num_passes += 1
        self._num_in_pass = done = loader.num_skipped
        length = length_of(loader)
        # the script counts them itself: each pass over a loader is one
        if not self.resumption.is_in_epochs:
            self.epoch_shown, self.num_epochs = loader.next_pass, None
        try:
            self._listeners.begin_pass(self.epoch_shown, self.num_epochs, length, done)
        except Ended:
            self._was_ended = True
            raise
        return True

    def _say_that_it_goes_on(self) -> None:
        """Prints once that a run continues which had finished: the script has more to do than
        before."""
        has_said, self._has_gone_on = self._has_gone_on, True
        had_finished = self._restorer is not None and self._restorer.checkpoint.manifest.finished
        if had_finished and not has_said and self._is_main:
            say(f"the run continues after step {self.step}, at which it had finished")

    @override
    def leave(self, loader: object, *, exhausted: bool, failed: bool) -> None:
        """Ends the pass. A step that was left by ``break`` counts if a phase of it is complete."""
        if self._leader is not loader:
            return
        failed = failed or self.script_failed()
        # Taken before the step is left, which may give its number back.
        comes_next = (self.step, self.phases.num_done) if self.phases.in_step else (self.step + 1, 0)
        if self.phases.in_step and self.phases.leave_step(failed=failed):
            # `break`, or an error that ends the script: indistinguishable here, and after an error
            # no rank may be waited for.
            self._agreement_pending = True
        self._leader = None
        # Also after an error, which the script may catch: the ranks are in streams of their shards.
        if not sys.is_finalizing():
            self._reseed_after_pass()
        if failed:
            return
        if self.meetings.are_held:
            self.meetings.leave(departure(self.step, comes_next, exhausted=exhausted), early=not exhausted)
        if exhausted:  # then every rank is here
            self.meetings.meet("the end of its loop", self.step)
            self._listeners.flush()
        self._listeners.end_pass(self.step, exhausted=exhausted)
        for stale in [follower for follower, newest in self._followers.items() if newest < self._num_passes]:
            stale.abandon()
            del self._followers[stale]
        self.resumption.end_pass()
        if exhausted and not self._followers and not self.resumption.is_in_epochs and self._saver.must_save:
            self._save_due()  # in a loop over team.epochs() this waits for the epoch's tail
        if exhausted and self._num_in_pass == 0:
            raise DataError(
                "a pass over a prepared loader had no global batch: the dataset is empty, its sampler or batch sampler yields "
                "nothing, or drop_last=True left out the only batch.",
                code="empty-pass",
            )

    # Steps

    @override
    def is_in_pass(self) -> bool:
        """Whether a pass that leads is under way."""
        return self._leader is not None

    @override
    def begin_step(self, plan: StepPlan) -> None:
        """Saves the checkpoint that is due, if any, and begins a step."""
        # Before a step, not after one: the code between two steps belongs to the earlier one, and
        # has run when the loader is asked for the next batch.
        if self._saver.must_save and self._may_save():
            if self._saver.is_stopping:
                self._listeners.end_pass(self.step, exhausted=False)
            self._listeners.flush()
            self._save_due()
        self.phases.begin_step(plan)

    def _may_save(self) -> bool:
        """Whether a checkpoint may be saved in this pass: whether it is known which iterator of
        another loader the script will continue.

        One that was made before the pass is made again by a script that resumes, so it is known by
        that. One that was made within an earlier pass, and has yielded nothing yet in this, may be
        continued or replaced. (A run that is to stop is saved all the same.)
        """
        idle = [loader for loader, newest in self._followers.items() if newest < self._num_passes]
        unclear = [loader for loader in idle if loader.made_inside]
        if unclear and not (self._saver.is_stopping and self._num_in_pass > 0):
            return False
        if unclear and not self._has_warned_of_idle and self._is_main:
            self._has_warned_of_idle = True
            warn(
                "a second loader has an iterator that was made within an earlier pass and has yielded nothing in this one. The "
                "resumed run continues that iterator, so results differ if the script makes a new one in this pass. Make it "
                "before the loop over batches.",
                code="idle-iterator",
            )
        for loader in self._followers:
            loader.is_idle = loader in idle
        return True

    @override
    def begin_following_step(self, loader: PreparedLoader) -> None:
        """Notes that another loader than the leading one yields a batch or has none left."""
        self._followers[loader] = self._num_passes

    @override
    def end_following_pass(self, loader: PreparedLoader) -> None:
        """Ends a pass over another loader than the leading one."""
        self._followers.pop(loader, None)

    @override
    def end_step(self) -> bool:
        """Ends the step, after the loop's body has run. Returns whether it had a phase."""
        self.phases.end_step()
        had_phase = self.phases.num_done > 0
        self._num_in_pass += 1
        # A step without a phase has exchanged nothing, so nothing shows that the other ranks take
        # it, too: they may be in its phase, and the agreement would match its collectives.
        if not had_phase and self.meetings.are_held:
            self.meetings.leave(passed_over(self.step), early=True)
            self.meetings.meet("the end of the step", self.step)
            self.meetings.left = None
        self._agree()
        return had_phase

    def _agree(self) -> None:
        step = self.phases.step
        self._agreement.agree(step)
        try:
            for notify in self._listeners.on.agreed:
                notify(step)
        except Ended:
            self._was_ended = True
            raise
        self.phases.parts.mark((LOADING, perf_counter()))

    def _save_due(self) -> None:
        """Saves the checkpoint that is due, between two steps: the next batch may have been
        fetched, but its step has not begun."""
        self._divergence.before_save(self.step)
        self._saver.save_due(self.resumption.here(), self.step, self.epoch_shown)

    # Between passes

    def before_collective(self, call: str) -> None:
        """Checks that this rank is outside of ``batch.shards``. After a pass that was left early,
        meets the other ranks, too."""
        self.phases.check_outside(call)
        # Within a pass, the exchange of the phase before has shown that all ranks are here.
        if self.meetings.is_due:
            self.meetings.meet(call, self.step)

    def before_evaluation(self, call: str) -> None:
        """Checks that this rank is outside of ``batch.shards``, and meets the other ranks. Every
        rank must call it."""
        self.phases.check_outside(call)
        self.meetings.meet(call, self.step)

    def flush(self, before: str = "the next loop") -> None:
        """Gathers what was logged and measured. Every rank must call it, between passes."""
        # In this order: the agreement and the listeners' ``flush`` are collectives, so the ranks
        # meet first.
        self.phases.check_outside("the end of the pass")
        self.meetings.meet(before, self.step)
        if self._agreement_pending:
            self._agreement_pending = False
            self._agree()
        self._listeners.flush()

    def keep_best(self, metric: float, mode: str) -> bool:
        """Saves the weights if the metric is the best so far, as ``Team.best`` describes. Every
        rank must call it."""
        self.meetings.meet("team.best()", self.step)
        if not self._saver.is_best(metric, mode):
            return False
        self._divergence.compare(self.step, "before the best weights are saved")
        self._saver.keep_best(metric, self.step, self.epoch)
        return True

    def script_failed(self) -> bool:
        """Whether an uncaught exception is ending the script: the interpreter sets
        ``sys.last_value`` before closing anything.

        Exceptions from before the run do not count; nor do any in a notebook or interactive
        session, which continues."""
        if self.phases.found_wrong:
            return True
        if hasattr(sys, "ps1"):
            return False
        return getattr(sys, "last_value", None) is not self._error_before

    def close(self, *, failed: bool) -> bool:
        """Ends the run; returns whether all that was to be saved is. Unless the script failed or
        was stopped, every rank must call it."""
        if self._leader is not None:  # the script still holds an iterator
            self.leave(self._leader, exhausted=False, failed=failed)
        is_unclear = False
        # A loop to which something still refers has not noticed that it was left.
        if not failed and (loop := self._open_loop()) is not None:
            if not self._was_ended and (line := loop.unclear_at) is not None:
                self.left_by_error, is_unclear = line, loop.is_unclear
            loop.leave()
        if self.phases.was_left and not failed:
            left_step, self.phases.was_left = self.phases.was_left, 0
            warn(
                f"step {left_step} is discarded: its loop over batch.shards was left early (break, or an error that was "
                "caught).",
                code="step-discarded",
            )
        if not failed:
            self.flush("the end of the run")
        if self.left_by_error is not None and not failed:
            # Not saved, either: the script's state is one that an undisturbed run never has between
            # two steps.
            self._saver.wait_until_written()
            self._say_unfinished(is_unclear=is_unclear)
            failed = True
        if (target := self.resumption.target) is not None and not failed:
            self._refuse_early_end(target)
        return self.resumption.is_catching_up or self._save_last(failed=failed or self._divergence.have_diverged)

    def _refuse_early_end(self, target: ScriptPosition) -> None:
        missed = f"the script ended before reaching {target}, where the run was interrupted"
        assert self._restorer is not None
        if (num := self.resumption.num_skipped) > 0 and not self._restorer.checkpoint.manifest.finished:
            raise UsageError(
                f"{missed}: it made {num} {'pass' if num == 1 else 'passes'}, which the run had made before, so "
                f"{'it was' if num == 1 else 'they were'} skipped. {_OWN_RESUMING}",
                code="end-before-resuming",
            )
        if self._is_main:
            warn(f"{missed}. Nothing was resumed, and no checkpoint was written.", code="end-before-resuming")

    def say_end_unknown(self) -> None:
        """Warns that the script ended with an unknown status, and what becomes of the run. Its end
        is not saved: a run that an exit has left within a pass, or behind one, would continue in
        the wrong place. Local."""
        trained = self.step > self._resumed_after and not self.resumption.is_catching_up
        if not trained or not self._is_main or self._was_ended or self.left_by_error is not None or self.script_failed():
            return
        warn(
            "the exit status of this script is unknown (Python does not show it after `raise SystemExit(...)`), so the run "
            f"does not count as finished, and its end, after step {self.step}, is not saved: the same command "
            f"{self.how_it_resumes()}. Call team.close() where the training is done, or end the script by sys.exit(...) and "
            "import lockstep at its top.",
            code="unknown-exit-status",
        )

    def how_it_resumes(self) -> str:
        """Returns what the same command does now, as the end of a sentence."""
        newest = self._saver.newest_written()
        return "starts over, since no checkpoint was saved" if newest is None else f"resumes after step {newest}"

    def _say_unfinished(self, *, is_unclear: bool) -> None:
        if not self._is_main or self.resumption.is_catching_up:
            return
        resumes = self.how_it_resumes()
        if is_unclear:
            warn(
                f"the loop over team.epochs() ({self.left_by_error}) was left early, inside a `try` or `with`, and its "
                "iterator still exists, so `break` and an error cannot be distinguished. The run does not count as finished: "
                f"the same command {resumes}. To end a run early by `break`, write the iterator into the loop, as in `for "
                "epoch in tqdm(team.epochs(n))`.",
                code="epochs-left-unclear",
            )
            return
        warn(
            f"an error or an exit has left the loop over team.epochs() ({self.left_by_error}), so the run does not count as "
            f"finished: the same command {resumes}. To end a run early, leave the loop by `break`.",
            code="epochs-left-by-error",
        )

    def _save_last(self, *, failed: bool) -> bool:
        step, end = self.step, self.resumption.end()
        is_saved = False
        try:
            if not failed and step > 0:
                is_same = self._divergence.compare_at_end(step)
                is_saved = self._end is not None and self._end[0] == step
                # (What rank 0 alone has changed since does not belong to the run.)
                is_saved = is_saved and (not is_same or self._end == (step, self._divergence.digest()))
        except MismatchError:
            self._saver.close(end, step, self.epoch_shown, failed=True)
            raise
        return self._saver.close(end, step, self.epoch_shown, failed=failed, is_saved=is_saved)
