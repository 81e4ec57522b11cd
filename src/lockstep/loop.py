"""The life of a step: what happens when the loop's body begins, when it ends, and when others run it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from lockstep.comm.collectives import Collectives
from lockstep.data.batches import length_of
from lockstep.data.sources import Absence
from lockstep.data.streams import Purpose, reseed
from lockstep.errors import DataError, LossError, UsageError
from lockstep.measure.journal import Journal
from lockstep.measure.log import MetricLog
from lockstep.measure.nan_watch import NanWatch
from lockstep.measure.passes import Pass, merge_passes
from lockstep.measure.progress import Display
from lockstep.plan.shards import MicroStep
from lockstep.prepare.formats import Formats
from lockstep.prepare.scaling import LossScaling
from lockstep.recovery.position import Route
from lockstep.recovery.saving import Saver
from lockstep.sync.protocol import Sync

if TYPE_CHECKING:  # imported where a run is traced
    from lockstep.measure.recorder import Recorder

_STATE = "state"
_LEFT = "left"


class Loop:
    """The position of this process in the run, and the one that moves it. The Driver of the prepared loaders."""

    def __init__(
        self,
        *,
        seed: int,
        num_shards: int,
        sync: Sync,
        scaling: LossScaling | None,
        log: MetricLog,
        nan_watch: NanWatch,
        journal: Journal,
        display: Display,
        collectives: Collectives,
        parameters: Collection[torch.Tensor],
        formats: Sequence[Formats],
        state_of: Callable[[], list[Any]],
        load_state: Callable[[list[Any]], None],
        route: Route,
        saver: Saver,
        resume: Callable[[bool], None],
        recorder: Recorder | None = None,
    ) -> None:
        self.step = 0
        self.epoch = 0
        self.turn: MicroStep | None = None
        self.num_epochs: int | None = None
        self.weight: float | None = None
        """The weight that the script gave to this micro-step's backward pass."""
        self._seed = seed
        self.num_shards = num_shards
        self._sync = sync
        self._scaling = scaling
        self._log = log
        self._nan_watch = nan_watch
        self._journal = journal
        self._display = display
        self._collectives = collectives
        self._parameters = parameters
        """Those of all prepared models (more may come)."""
        self._formats = formats
        """Of all prepared models."""
        self._state_of = state_of
        self._load_state = load_state
        self._route = route
        self._saver = saver
        self._resume = resume
        """Puts the state of the run's checkpoint back; told whether all of it must be there by now."""
        self._recorder = recorder
        self._leader: object | None = None
        self._pass: Pass | None = None
        self._num_before = 0
        """Steps of the pass at hand that were taken before the run was interrupted."""
        self._passes: list[Pass] = []
        self._first_pass = True
        self._notice = ""
        self._num_backwards = 0
        """Backward passes in the micro-step at hand."""
        self._calls_of_step = 0
        """Backward passes in the first micro-step of the step at hand."""
        self._in_backward = False
        self._has_trained = False
        self._has_stepped = False
        """Whether an optimizer's step() was called in the micro-step at hand."""
        self._told_of_skipping = False
        self._owes_tick = False
        """Whether the ranks have still to talk about the last step, because the loop was left in it."""
        self._error_before = getattr(sys, "last_value", None)
        self._is_at_end = False
        """Whether this launch has come to the end that the run had come to before, and to nothing new yet."""

    # Where the run is

    @property
    def next_step(self) -> int:
        """See Driver."""
        return self.step + 1

    @property
    def ends_step(self) -> bool:
        """Whether the body that runs is the last one of its step on this process. True outside of loops."""
        return self.turn is None or self.turn.is_last

    def optimizer_may_act(self, optimizer: Optimizer) -> bool:
        """Whether ``optimizer.step()`` acts: when a step ends, and outside of loops.

        Raises:
            UsageError: in a loop, with gradients that never went through ``team.backward``, or only half.
        """
        if self.turn is not None and self._num_backwards == 0 and _has_gradients(optimizer):
            raise UsageError(
                f"optimizer.step() in step {self.step} without team.backward() before: the gradients of this shard have not "
                "met those of the others, so every process would train a model of its own. Call team.backward(loss) where "
                "the script has loss.backward()."
            )
        if self.turn is not None and self._in_backward:
            raise UsageError(
                f"optimizer.step() within the backward pass of step {self.turn.step} (from a hook on a parameter?): the "
                "gradients of this shard have not met those of the others. Call it after team.backward(loss)."
            )
        if self.turn is not None and self.ends_step and (stranger := self._find_stranger(optimizer)) is not None:
            raise UsageError(
                f"{type(optimizer).__name__}.step() in step {self.turn.step}: a parameter of shape {tuple(stranger.shape)} has "
                "a gradient and belongs to no prepared model, so every process would train one of its own. A layer that is "
                "added or replaced after prepare() does not take part: build the whole model first."
            )
        self._has_stepped = self.turn is not None
        return self.ends_step

    def _find_stranger(self, optimizer: Optimizer) -> torch.Tensor | None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        return next((p for p in parameters if p.grad is not None and p not in self._parameters), None)

    def guard(self, what: str) -> None:
        """Refuse a collective that some rank cannot take part in.

        Raises:
            UsageError: the loop's body is running, and other ranks may run it more or fewer times.
        """
        turn = self.turn
        if turn is None:
            return
        if not turn.is_last:
            raise UsageError(
                f"{what} in the loop's body, in micro-step {turn.index + 1} of step {turn.step}: other processes may run "
                "the body a different number of times, and would wait for ever. Call it once a step: `if team.ends_step:`."
            )
        if turn.num_active_ranks < self._collectives.size:
            raise UsageError(
                f"{what} in the loop's body, in step {turn.step}: its global batch of {turn.step_samples} samples is "
                f"smaller than the number of processes, so ranks {turn.num_active_ranks} to {self._collectives.size - 1} "
                "do not run the body, and would never answer. Use drop_last=True, or call it after the loop."
            )

    # Going on with an interrupted run, and being interrupted

    @property
    def is_replaying(self) -> bool:
        """Whether what runs was done already before the interruption, so that nothing of it is noted again."""
        return self._route.target is not None or self._is_at_end

    def enter_epochs(self, num_epochs: int) -> int:
        """A loop over ``team.epochs()`` begins: returns its first epoch."""
        self._arrive()  # at the end of an earlier launch that had not come here
        first = self._route.enter_epochs(num_epochs)
        is_over = self._arrive(num_epochs)
        if not is_over and self._route.target is not None and self._route.target.in_pass and first < num_epochs:
            self._resume(False)  # for the script's code before the pass, which sees the state again when that begins
        return first

    def begin_epoch(self, epoch: int, num_epochs: int) -> None:
        """An epoch begins: what was drawn before it must not matter to one that is begun again after an interruption."""
        self.num_epochs = num_epochs
        self.epoch = epoch
        self._route.begin_epoch(epoch)
        self._leave_end()
        self._arrive()
        self._is_at_end = False  # what the script does before the pass is new
        self._reseed_between(epoch)

    def _reseed_between(self, epoch: int) -> None:
        if self._leader is None:
            reseed(self._seed, Purpose.EPOCH, self._route.here().section, epoch)

    def end_epoch(self, epoch: int) -> None:
        """It is over. Every rank must call it."""
        self.report_passes()
        self._saver.ask()
        if self._leader is None and self._saver.is_due:
            self._saver.cut_due(self._route.after_epoch(epoch), self.step, self.epoch)

    def leave_epochs(self, num_epochs: int | None) -> None:
        """The loop over epochs has come to its end; or it was left before, with None."""
        self._route.leave_epochs(num_epochs)
        if num_epochs is not None:
            self._arrive()
        self._reseed_between(0)  # a launch that goes on behind the loop has not drawn what was drawn in it

    def _arrive(self, num_epochs: int | None = None) -> bool:
        """At the place to go on from, if this is one: see ``Route.arrives``."""
        if not self._route.arrives(num_epochs):
            return False
        self._resume(True)
        self._is_at_end = self._route.is_end
        return True

    def _leave_end(self) -> None:
        """A run that had come to its end is trained further. What ran since it came there again was in its state already
        (a schedule's step in the tail of the last epoch, say): it is undone."""
        if self._is_at_end:
            self._is_at_end = False
            self._resume(True)

    def _save_if_due(self) -> None:
        """Between two steps of a pass: the batch of the next one is there, and nothing of it has been done."""
        if self._saver.is_due:
            self._log.flush()
            self._saver.cut_due(self._route.here(), self.step, self.epoch)

    # Driver: told by the loader

    def skips(self) -> bool:
        """See Driver."""
        if self._leader is not None or not self._route.skips():
            return False
        if not self._told_of_skipping and self._collectives.rank == 0 and self._route.here().section % 2 == 0:
            print(
                "lockstep: passes over the training loader that were made before the interruption are left out, but the code "
                "around them runs again: use `for epoch in team.epochs(n)`, which begins with the right epoch.",
                flush=True,
            )
            self._told_of_skipping = True
        if self._arrive():
            self.resume_stream()  # as after the pass
        return True

    def enter(self, loader: Any) -> bool:
        """See Driver."""
        if self._leader is loader:  # its earlier iterator was left behind unfinished
            self.leave(loader, exhausted=False, failed=False)
        if self._leader is not None:
            return False
        self.report_passes()
        self._stop_if_told()
        self._leave_end()
        done = 0
        if self._route.begin_pass():
            self._resume(True)
            done = loader.num_skipped
        self._leader = loader
        if self._recorder is not None:
            self._recorder.enter(self.epoch)
        length = length_of(loader)
        self._pass = Pass(self.epoch, None if length is None else length - done, warm_up=self._first_pass)
        self._num_before = done
        self._first_pass = False
        title = f"epoch {self.epoch + 1}" + (f"/{self.num_epochs}" if self.num_epochs else "")
        self._display.begin(title, length)
        return True

    def begin(self, turn: MicroStep) -> None:
        """See Driver."""
        if turn.step != self.step:
            self._save_if_due()
        self.turn = turn
        self.step = turn.step
        self.weight = None
        self._num_backwards = 0
        self._has_stepped = False
        self._sync.begin(turn)
        if self._recorder is not None:
            self._recorder.begin(turn)
        self.resume_stream()

    def received(self, turn: MicroStep, batch: Any) -> None:
        """See Driver."""
        if self._recorder is not None:
            self._recorder.received(turn, batch)

    def resume_stream(self) -> None:
        """See Driver."""
        if self.turn is None:
            reseed(self._seed, Purpose.TAIL, self.step)
        else:
            reseed(self._seed, Purpose.TRAIN, self.step, self.turn.shard, self.turn.part)

    def end_turn(self) -> None:
        """See Driver."""
        turn, self.turn = self.turn, None
        assert turn is not None
        self._check_calls(turn)
        if self._recorder is not None:
            self._recorder.end_turn()
        if not turn.is_last:
            return
        self._end_step()
        if turn.num_active_ranks < self._collectives.size:
            self._send(_STATE, takes_state=True)
        self._step_done(turn.step_samples)
        self._stop_if_told()

    def _end_step(self) -> None:
        self._sync.end_step()
        if self._scaling is not None:
            self._scaling.end_step()
        self._log.end_step()

    def _check_calls(self, turn: MicroStep) -> None:
        """Every shard of a step must make the same backward calls: the ranks meet in them."""
        calls, self._num_backwards = self._num_backwards, 0
        if turn.index == 0:
            self._calls_of_step = calls
        self._has_trained = self._has_trained or calls > 0
        if calls != self._calls_of_step or (calls == 0 and self._has_trained and self.num_shards > 1):
            self._refuse_calls(turn, calls)

    def _refuse_calls(self, turn: MicroStep, calls: int) -> None:
        raise UsageError(
            f"micro-step {turn.index + 1} of step {turn.step} called backward() {calls} times, where "
            f"{self._calls_of_step or 'one or more'} were expected: the shards of a step meet in these calls, so all must "
            "make the same ones. To leave a shard out, call team.backward(loss, weight=0) instead of skipping it."
        )

    def follow(self, absence: Absence) -> bool:
        """See Driver. The ranks with samples took the step; their rank 0 sends what came of it."""
        self._save_if_due()
        self.step = absence.step
        self._sync.absent(absence.num_active_ranks)
        kind, state = self._collectives.broadcast_object(None)
        if state is None:
            self.step -= 1
        else:
            self._load_state(state)
            self._step_done(0, is_left=kind == _LEFT)
        if kind == _STATE:
            self._stop_if_told()
        return bool(kind == _STATE)

    def leave(self, loader: object, *, exhausted: bool, failed: bool) -> None:
        """See Driver."""
        if self._leader is not loader:
            return
        failed = failed or self.script_failed()
        self._leader = None
        turn, self.turn = self.turn, None
        if turn is not None and failed:
            self._sync.drop()
            self._log.drop_step()
            if self._recorder is not None:
                self._recorder.drop()
        elif turn is not None:
            self._leave_body(turn)
        if failed:
            return
        self.resume_stream()
        if exhausted:  # then every rank is here
            self._log.flush()
        self._display.end()
        self._route.end_pass()
        if exhausted and self._route.here().section % 2 == 0:
            self._save_if_due()  # in a loop over team.epochs() that waits until the epoch's tail is over
        if self._pass is not None:
            self._pass.end(self.step)
            self._passes.append(self._pass)
            is_empty, self._pass = self._pass.num_steps + self._num_before == 0, None
            if exhausted and is_empty:
                raise DataError(
                    "a pass over a prepared loader had no global batch, so nothing was learnt: the data set is empty, its "
                    "sampler or batch sampler yields nothing (or empty batches), or drop_last=True left out the only one"
                )

    def _leave_body(self, turn: MicroStep) -> None:
        """`break`: a step that had its last backward pass counts, an unfinished one is discarded."""
        has_trained = self._num_backwards > 0 or (turn.index > 0 and self._calls_of_step > 0)
        counts = turn.is_last and self._num_backwards > 0
        if counts:
            if self._recorder is not None:
                self._recorder.end_turn()
            self._end_step()
        else:
            if self._recorder is not None:
                self._recorder.drop()
            self._sync.drop()
            self._log.drop_step()
            self.step -= 1
            if has_trained:
                # Said when the script goes on: an error that ends the script leaves the loop too.
                self._notice = (
                    f"lockstep: the loop was left in micro-step {turn.index + 1} of step {turn.step}: the partial step is "
                    "discarded. To leave after whole steps: `if team.ends_step and ...: break`."
                )
        if turn.num_active_ranks < self._collectives.size:
            # The ranks that follow cannot see the break.
            self._send(_LEFT, takes_state=counts)
        if counts:
            self._step_done(turn.step_samples, is_left=True)

    def _send(self, kind: str, *, takes_state: bool) -> None:
        if self._collectives.rank == 0:
            self._collectives.broadcast_object((kind, self._state_of() if takes_state else None))
        else:
            self._collectives.broadcast_object(None)

    def _step_done(self, num_samples: int, *, is_left: bool = False) -> None:
        self._nan_watch.tick(self.step)
        if is_left:
            # `break`, or an error that ends the script: they look alike, and after an error nobody may be waited for.
            self._owes_tick = True
        else:
            self._tick()
        if self._recorder is not None:
            self._recorder.end_step(self.step, num_samples or None)
        if self._pass is not None:
            self._pass.count(num_samples)
            self._display.step(self._num_before + self._pass.num_steps)

    def _tick(self) -> None:
        self._owes_tick = False
        self._log.tick(self.step)
        self._saver.tick(self.step)

    def _stop_if_told(self) -> None:
        """End the script in order after the last step that is to be traced. All ranks come here after the same step."""
        if self._recorder is not None and self._recorder.is_over:
            raise SystemExit(0)

    # What the script does in the body

    def backward(self, loss: torch.Tensor, weight: float | None, options: dict[str, Any]) -> None:
        """Check a shard's loss, and run its backward pass."""
        turn = self.turn
        if turn is None:
            raise UsageError(
                "backward() outside of a loop over a prepared loader: there is no step for its gradients to belong to. "
                "Iterate the loader that prepare() returned."
            )
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise LossError(f"the loss must be a scalar tensor, and is {shape}: average it over the shard's samples")
        if not loss.requires_grad:
            raise LossError(
                "the loss does not depend on any parameter that learns, so it has no gradient: was it detached, turned into "
                "a number on the way, or computed under no_grad?"
            )
        if self._has_stepped and self.num_shards != self._collectives.size:
            raise UsageError(
                f"backward() after optimizer.step() in the body of step {turn.step}: the update acts in the last micro-step "
                f"only, so of {self.num_shards} shards on {self._collectives.size} processes some would see it and some not, "
                "and the answer would depend on the number of processes. Call all backward passes before the first "
                "optimizer.step(), or use as many processes as shards."
            )
        if weight != 0:  # the mean over no tokens is NaN, and counts for nothing
            self._nan_watch.look(loss, turn.step, turn.shard)
        if turn.index > 0 and self._num_backwards == self._calls_of_step:
            self._refuse_calls(turn, self._num_backwards + 1)
        self._num_backwards += 1
        self.weight = weight
        if self._recorder is not None:
            self._recorder.before_backward(loss, weight)
        self._in_backward = True
        try:
            run: Callable[..., None] = self._sync.backward
            for formats in self._formats:
                run = functools.partial(formats.backward, run)
            run(loss if self._scaling is None else self._scaling.scale(loss), weight, **options)
        finally:
            self._in_backward = False
        if self._recorder is not None:
            self._recorder.after_backward()

    def note_values(self, weight: float | None, values: Mapping[str, Any]) -> None:
        """Note logged values of the shard at hand, with its weight."""
        if self.is_replaying:
            return
        turn = self.turn
        if weight is None:
            weight = self.weight if self.weight is not None else (1.0 if turn is None else float(turn.num_samples))
        self._log.add(self.epoch, self.step, weight, dict(values), in_body=turn is not None)

    def values_arrived(self, row: tuple[int, int, dict[str, float]]) -> None:
        """Averages of a step have come together."""
        epoch, step, values = row
        self._journal.scalars("step", epoch, step, values)
        self._display.values(values)

    # Between passes

    def report_passes(self) -> None:
        """Bring together what was logged and measured. Every rank must call it; called between passes."""
        if self._notice and self._collectives.rank == 0:
            print(self._notice, flush=True)
        self._notice = ""
        if self._owes_tick:
            self._tick()
        self._nan_watch.flush()
        self._log.flush()
        passes, self._passes = self._passes, []
        for one in passes:
            by_rank = self._collectives.all_gather_object(one.result())
            self._journal.write("epoch", **merge_passes(by_rank))

    def script_failed(self) -> bool:
        """Whether an uncaught exception is ending the script: the interpreter notes it before anything is closed.

        (A notebook goes on after one; those from before the run do not count.)
        """
        return getattr(sys, "last_value", None) is not self._error_before

    @property
    def has_stopped(self) -> bool:
        """Whether the run was asked to stop and has saved itself: the script is not over, and is left."""
        return self._saver.has_stopped

    def close(self, *, failed: bool) -> None:
        """The script is over. Unless it failed, or was stopped, every rank must call it."""
        if self._leader is not None:  # the script still holds an iterator
            self.leave(self._leader, exhausted=False, failed=failed)
        self._display.end()
        if not failed:
            self.report_passes()
        if self._route.target is not None and not failed and self._collectives.rank == 0:
            print(
                f"lockstep: WARNING: the run was interrupted at {self._route.target}, and the script did not come there: "
                "nothing was gone on with, and no checkpoint is written.",
                flush=True,
            )
        if self._route.target is None and not self._is_at_end:  # else nothing has been trained
            self._saver.close(self._route.end(), self.step, self.epoch, failed=failed)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
