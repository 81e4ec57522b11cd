"""``Team``: the object that ``join()`` returns, with everything a training script calls."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

from lockstep._base.errors import MismatchError, PartedError, PeerError, UsageError
from lockstep._base.exit_status import ExitStatus, ScriptEnd, is_success
from lockstep._base.stopping import UNSAVED_END_STATUS, end_unsaved, exit_now, say, tell_stuck
from lockstep._data.batches import map_tensors
from lockstep._data.evaluation import Evaluation
from lockstep._data.evaluation_pass import EvaluationPass
from lockstep._data.loader import PreparedLoader
from lockstep._events.failure import FailureRecord
from lockstep._joining.engine import Engine
from lockstep._loop.hosted import HostedEpochs
from lockstep._loop.preparing import A, B, C, D, Kept
from lockstep._prepare.guarded_methods import idle_when
from lockstep._prepare.model import unwrap
from lockstep._prepare.per_shard import PerShard
from lockstep._state.checkpoint.tree import take_apart
from lockstep._state.script_state import SavedValue, ScriptState
from lockstep._world.comm.collectives import Collectives
from lockstep._world.comm.dtensors import full_tensor
from lockstep._world.comm.group import default_group
from lockstep._world.comm.raw_collectives import EvaluationCollectives
from lockstep._world.environment import World, failure_file, hidden_launcher

_OF_ALL_RANKS = (MismatchError, UsageError)
"""Errors of ``close`` that are the same on all ranks."""
_LOG_MEANS = (
    "Add the value to the batch, batch.add(loss=loss), and log its mean after the loop, team.log(loss=batch['loss'])."
)


class Team(Collectives):
    """One process's view of the run, including collectives over all its processes. Created by
    ``join()``."""

    def __init__(self, engine: Engine) -> None:
        # `before_collective` may meet the other ranks. Not all ranks call a collective of a
        # sub-group, or send a message, so these calls must not wait for a meeting.
        super().__init__(
            default_group(), engine.transport, engine.loop.before_collective, within_groups=engine.phases.check_outside
        )
        self.config = engine.config
        """The run's settings, with every default resolved."""
        self.devices = engine.devices
        """The devices of this process: one, or ``devices_per_process`` of them."""
        self.device = engine.devices[0]
        """The first of ``devices``, to which batches are moved."""
        self.run_dir = engine.context.run_dir
        """Directory of the run."""
        self.num_shards = engine.phases.num_shards
        """Number of shards that each global batch is split into."""
        self._engine = engine
        self._loop = engine.loop
        self._phases = engine.phases
        self._exit_status = ExitStatus()
        self._closed = False

    # Properties and not attributes: see Collectives.rank.

    @property
    def world(self) -> World:
        """Which process this is, and how it was started."""
        return self._engine.world

    @property
    def local_rank(self) -> int:
        """Rank of this process among those on its host."""
        return self._engine.world.local_rank

    @property
    def world_size(self) -> int:
        """Number of processes of the run."""
        return self._engine.world.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes."""
        return self._engine.world.rank == 0

    @property
    def seed(self) -> int:
        """Root of the run's random streams."""
        return self._phases.parts.seed

    @contextlib.contextmanager
    def hide_launcher(self) -> Iterator[None]:
        """Within the block, the environment variables with which a launcher sets the rank of a
        process (RANK, WORLD_SIZE and the like, of each launcher that lockstep knows) are not set.
        Local.

        For a library that drives training on top of lockstep and would open another process group:
        it finds a single process, on every rank. Processes that are started within the
        block do not have the variables, either."""
        with hidden_launcher():
            yield

    # Preparing

    # For type checkers: a loader becomes a PreparedLoader, anything else keeps its type. Less
    # common orders return Any.
    @overload
    def prepare(self, a: A, /) -> A: ...
    @overload
    def prepare(self, loader: Iterable[Any], /) -> PreparedLoader: ...
    @overload
    def prepare(self, a: A, b: B, /) -> tuple[A, B]: ...
    @overload
    def prepare(self, a: A, loader: Iterable[Any], /) -> tuple[A, PreparedLoader]: ...
    @overload
    def prepare(self, a: A, b: B, c: C, /) -> tuple[A, B, C]: ...
    @overload
    def prepare(self, a: A, b: B, loader: Iterable[Any], /) -> tuple[A, B, PreparedLoader]: ...
    @overload
    def prepare(self, a: A, b: B, c: C, d: D, /) -> tuple[A, B, C, D]: ...
    @overload
    def prepare(self, a: A, b: B, c: C, loader: Iterable[Any], /) -> tuple[A, B, C, PreparedLoader]: ...
    @overload
    def prepare(self, a: A, b: B, c: C, d: D, loader: Iterable[Any], /) -> tuple[A, B, C, D, PreparedLoader]: ...
    @overload
    def prepare(self, *objects: Kept | Iterable[Any]) -> Any: ...
    def prepare(self, *objects: Any) -> Any:
        """Prepare the script's objects for the run. Every rank must call it, with equal objects in
        the same order.

        Models are moved to ``team.device`` (with several devices per process they stay where the
        script has placed them) and receive rank 0's parameters and buffers; the returned model
        stands for the user's, with the same names, methods and attributes. So does a loss module
        that has buffers only. Optimizers, schedules and ``AveragedModel`` are returned themselves.
        A ``DataLoader``, or any iterable of ready batches, becomes a loader that yields one
        ``Batch`` per step, with this process's shards. Evaluation loaders are not prepared: see
        ``evaluate``.

        Returns:
            The prepared objects in the same order: a tuple, or the object itself if there is only
            one. For an object that was already prepared, its prepared object.

        Raises:
            UsageError: an object is of a kind that cannot be prepared.
            ModelError: a model has no parameters and no buffers, is already wrapped, or is on
                devices of another process; or an optimizer has parameters that belong to no
                prepared model.
            DataError: a loader cannot be split into shards.
            MismatchError: the ranks gave different objects.
        """
        prepared = self._engine.prepare(objects)
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def register(self, name: str, value: Any, *, compare: bool = True) -> Any:
        """Add an object of the script to the run's state: it is saved in every checkpoint and
        restored on resume.

        Every rank must call it, before the training loop, with a value that is the same on all
        ranks.

        Args:
            name: a unique name, the same when the run is resumed.
            value: a tensor, a list or a dict (of tensors and plain values; restored in place), a
                random generator, or an object with ``state_dict()`` and ``load_state_dict()``.
            compare: whether the ranks compare its state. False: it may differ, as clocks do. Rank
                0's is saved, and every rank resumes with it. Nothing that is trained may depend on
                it.

        Returns:
            ``value``.

        Raises:
            UsageError: the name is already used, or the value is of another kind.
        """
        if name in self._engine.state.registered:
            raise UsageError(
                f"the name {name!r} is already used by team.register() or team.state(). Choose another.",
                code="state-name-taken",
            )
        self._engine.state.register(name, value, compare=compare)
        return value

    def state(self, **values: Any) -> ScriptState:
        """Create a namespace for values of the script, such as the best accuracy so far or a
        counter: it is saved in every checkpoint and restored on resume.

        ::

            state = team.state(best=0.0, bad=0)
            for epoch in team.epochs(100):
                ...
                if accuracy > state.best:
                    state.best, state.bad = accuracy, 0
                else:
                    state.bad += 1

        Every rank must call it, before the training loop, and assign the same values, outside of
        ``batch.shards``. Only names that are passed here can be assigned.

        Args:
            values: the initial values, by name: numbers, text, None, tensors, and lists or dicts of
                them. No other call of ``state`` or ``register`` may have the same name.

        Raises:
            UsageError: a name is already used.
            ConfigError: a checkpoint cannot contain a value. (Also raised when such a value is
                assigned.)
        """
        state = ScriptState(values, self._phases.check_outside)
        for name in values:
            self.register(name, SavedValue(state, name))
        return state

    @property
    def in_audit(self) -> bool:
        """Whether this shard runs without effect: an audit computes it again, or ``lockstep replay
        --blame`` its samples. Code inside ``batch.shards`` that counts something, or writes files,
        should skip that."""
        return self._phases.is_dry_run

    def per_shard(self, name: str, start: Any) -> PerShard:
        """Create state that each shard carries from batch to batch, such as an RNN's hidden state.

        Every rank must call it, before the training loop. In the loop over ``batch.shards``, read
        and set the running shard's state as the returned object's ``value``; outside, ``reset()``
        starts over. It is saved in every checkpoint, and does not depend on the number of
        processes.

        Args:
            name: a unique name, the same when the run is resumed.
            start: the initial value, copied for each shard: a tensor, a plain value, or a list or
                dict of them.

        Raises:
            UsageError: the name is already used.
            ConfigError: a checkpoint cannot contain the value. (Also raised when such a value is
                assigned.)
        """
        per_shard = PerShard(
            name, start, self._phases, self._engine.collectives, self._engine.blocks, take_apart, self._engine.devices
        )
        idle_when(per_shard, "reset", lambda: self._loop.resumption.is_catching_up)
        self.register(name, per_shard)
        return per_shard

    def best(self, metric: float, mode: str = "max") -> bool:
        """Save the weights of all models to ``<run>/best`` if the metric is the best so far in this
        run.

        Every rank must call it, outside of ``batch.shards``, with the same value, such as a result
        of ``evaluate``. The weights are written while training continues;
        ``lockstep.load_weights(team.run_dir / "best")`` reads them.

        Args:
            metric: a number. NaN is never the best.
            mode: ``max`` if larger values are better, ``min`` if smaller ones are.

        Returns:
            Whether the metric was the best so far.
        """
        self._phases.check_outside("team.best()")
        if self._loop.resumption.is_catching_up:
            return False
        return self._loop.keep_best(float(metric), mode)

    @property
    def best_metric(self) -> float | None:
        """The best metric passed to ``best`` so far; None: there is none. Restored on resume, and
        the same on every rank."""
        return self._engine.state.best

    @property
    def best_epoch(self) -> int:
        """The epoch, from 0, in which ``best_metric`` was passed to ``best``; -1: there is none.
        For early stopping::

            team.best(accuracy)
            if epoch - team.best_epoch == 3:  # epochs without a better one
                break

        Restored on resume, and the same on every rank.
        """
        return self._engine.state.best_epoch

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own model behind a prepared one."""
        return unwrap(model)

    # In the loop

    @property
    def step(self) -> int:
        """Number of the current step, from 1; outside of loops, the number of steps taken.

        Raises:
            UsageError: in a loader worker.
        """
        if get_worker_info() is not None:
            # A worker has the team as it was when the worker started, and fetches ahead of the
            # loop.
            raise UsageError(
                "team.step was read in a loader worker, which knows only the step at which it started "
                f"({self._loop.step}), so samples would depend on num_workers. Use the epoch instead (a method "
                "set_epoch(epoch) of the dataset), or apply what depends on the step to the batch, inside batch.shards.",
                code="step-in-loader-worker",
            )
        return self._loop.step

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0."""
        return self._loop.epoch

    @property
    def shard(self) -> int:
        """Number of the running shard, 0 to ``num_shards - 1``, inside ``batch.shards`` of a
        training batch.

        Raises:
            UsageError: no shard is running.
        """
        micro = self._phases.micro
        if micro is None:
            raise UsageError(
                "team.shard was read outside the shard loop of a training batch, where no shard is running. Read it inside "
                "`for ... in batch.shards`.",
                code="shard-outside-shard-loop",
            )
        return micro.shard

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Iterate over the epoch numbers, 0 to ``num_epochs - 1``. Every rank must leave the loop
        at the same point.

        A resumed run begins with the epoch in which it was interrupted. To end training early,
        leave the loop by ``break``: after an error or ``sys.exit`` in it the run is not finished,
        and the same command resumes it."""
        return self._loop.epochs(num_epochs)

    def hosted_epochs(self, num_epochs: int) -> HostedEpochs:
        """A loop over epochs for a host: a library that drives training by another loop, and
        notifies this object where its epochs begin and end. Every rank must call it, with
        everything prepared and registered.

        When it returns, the run has been restored completely. (In a script's loop, ``epochs``
        restores it again at the beginning of the pass, after the code of the script that precedes
        it.) ``HostedEpochs`` describes the calls. ``loader.finish()`` notifies the epoch's training
        loader that its pass has finished."""
        return self._loop.hosted_epochs(num_epochs)

    def backward(
        self, loss: Tensor, weight: float | Tensor | None = None, *, reduction: str | None = None, **options: Any
    ) -> None:
        """Run the backward pass of one shard, instead of ``loss.backward()``. Call it inside
        ``batch.shards``.

        At the end of the phase, ``sum(w_i * g_i) / sum(w_i)`` over all shards of all ranks is added
        to ``.grad``.

        Args:
            loss: a scalar: the mean over the shard's samples (or tokens, or whatever ``weight``
                counts).
            weight: the shard's weight, 0 or more; None: its number of samples. Where the loss is a
                mean over tokens, give the number of tokens. Either all shards give a weight or none
                does. A tensor on a GPU is read when the phase ends.
            reduction: ``mean`` (the default), or ``sum`` for a loss that is a sum over the shard's
                samples (``reduction="sum"`` of PyTorch's losses): the gradients of all shards are
                then added without division.
            options: ``retain_graph``, ``create_graph``, ``inputs``, as for ``Tensor.backward``.

        Raises:
            UsageError: called before ``prepare``, or outside of ``batch.shards``.
            ConfigError: the reduction is unknown, or ``sum`` is combined with a weight.
            LossError: the loss is not a scalar, is NaN, or is a sum without ``reduction`` saying
                so.
            ModelError: the loss no longer depends on some parameters.
        """
        self._phases.backward(loss, weight, reduction, options)

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_``. Every rank must call it: with ``fsdp`` it
        communicates.

        Returns:
            The total norm before clipping, a scalar tensor that is the same on every rank.
        """
        self._phases.check_outside("team.clip_grad_norm_()")
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The autocast context of the run's precision, for computation outside of a prepared
        model's forward pass."""
        return self._engine.precision.autocast(self.device)

    def log(self, **values: Any) -> None:
        """Write values to the run's event log and the progress display. Never waits for another
        rank.

        Call it outside of ``batch.shards``, with values that are the same on every rank, as
        ``batch[name]`` and results of evaluations are.

        Args:
            values: numbers, or tensors with one element, which are read from a GPU every
                ``log_every`` steps. None is left out.
        """
        if self._loop.resumption.is_catching_up:
            return
        self._phases.check_outside("team.log()", _LOG_MEANS)
        self._engine.log.add(self._loop.epoch_shown, self.step, values)

    # Evaluating

    def evaluate(
        self,
        model: nn.Module | Sequence[nn.Module],
        loader: Iterable[Any],
        metrics: Sequence[Any] = (),
        *,
        share: bool = False,
    ) -> Evaluation:
        """Evaluate on all processes, with the same result as on one: see ``Evaluation``. Every rank
        must call it.

        Args:
            model: a model or several, which are in evaluation mode inside the block.
            loader: a plain ``DataLoader`` or iterable of ready batches. Of a prepared loader the
                original one is used.
            metrics: objects for ``batch.update``; required if a process may get no batch.
            share: whether results of single batches are read on all processes: ``batch.share`` and
                ``batch.shared``. As many batches as there are processes are then computed at the
                same time, in the loop over the shards of the first one. So a batch must not depend
                on results shared by the previous batch, nor on a counter of the outer loop:
                ``batch.number`` and ``batch.num_samples``, read inside ``batch.shards``, belong to
                the samples.
        """
        self._loop.before_evaluation("team.evaluate()")
        models = [model] if isinstance(model, nn.Module) else list(model)
        section, epoch, _ = self._loop.resumption.newest_pass()
        source, key = self._engine.evaluated.next(loader, (section, epoch), self.step, in_step=self._phases.in_step)
        collectives, is_collective = self._engine.collectives, self._engine.strategy.forward_is_collective
        over = EvaluationPass(
            source,
            key,
            collectives,
            self.device,
            self._phases,
            metrics,
            together=is_collective and self.world_size > 1,
            shares=share,
            of_script=None if is_collective else EvaluationCollectives(collectives),
        )
        return Evaluation(models, over, self._evaluated)

    def _evaluated(self, results: dict[str, Any]) -> None:
        if self._loop.resumption.is_catching_up:
            return
        results = {name: float(value) for name, value in results.items() if not isinstance(value, Tensor)}
        self._engine.log.complete()  # trackers expect steps in order
        self._engine.record("evaluate", self._loop.epoch_shown, self.step, results)
        self._engine.listeners.evaluated(self.step, results)

    # Printing and one-rank work

    def print(self, *values: Any, **options: Any) -> None:
        """Call ``print`` on rank 0 only."""
        if self.is_main:
            print(*values, **{"flush": True, **options})

    def save(self, value: Any, path: str | os.PathLike[str]) -> None:
        """Call ``torch.save`` on rank 0 only: ``team.save(model.state_dict(), "model.pt")`` writes
        a file for plain PyTorch.

        Every rank must call it, outside of ``batch.shards``, since parameters that ``fsdp`` has
        sharded are gathered for it. Rank 0 has written the file when it returns; the others do not
        wait.
        """
        self._phases.check_outside("team.save()")
        # fsdp: gather one tensor at a time, and keep it only on rank 0, to limit memory.
        if self._engine.strategy.forward_is_collective:
            value = map_tensors(self._whole_on_main, value)
        if self.is_main:
            torch.save(value, path)

    def _whole_on_main(self, tensor: Tensor) -> Tensor | None:
        whole = full_tensor(tensor)
        return whole.cpu() if self.is_main else None

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, then on the other ranks: for work to be done once, such as
        a download.

        Every rank must enter it. If rank 0 fails in the block, the other ranks raise PeerError
        without running it."""
        self._loop.before_collective("team.main_first()")
        if not self.is_main and not self._engine.collectives.broadcast_plain(None):
            raise PeerError(
                "rank 0 failed in main_first(), so this rank did not run the block. See rank 0's error.",
                code="main-first-failed",
            )
        # Sent in `finally`: the others wait for it, also if the block fails.
        done = False
        try:
            yield
            done = True
        finally:
            if self.is_main:
                self._engine.collectives.broadcast_plain(done)

    # Closing

    @property
    def is_closed(self) -> bool:
        """Whether this process has left the run."""
        return self._closed

    def close(self) -> None:
        """Leave the run: write pending output and close the process group. Called automatically
        when the script ends.

        Every rank must call it, unless the script has failed: then it does not communicate.
        Otherwise it waits for the other ranks if a step was taken.

        Raises:
            MismatchError: the script has changed the state of the ranks in different ways since its
                last step.
        """
        self._close(at_exit=False)

    def _close(self, *, at_exit: bool) -> None:
        if self._closed:
            return
        # First: after an error below, the exit handler must not close the run again.
        self._closed = True
        self._engine.at_exit.cancel()
        error = sys.exc_info()[1]
        went_well = error is None or (isinstance(error, SystemExit) and is_success(error.code))
        went_well = went_well and (not at_exit or self._ended_well())
        # After a failure the other ranks may have exited, or never arrive: do not communicate.
        failed = self._loop.script_failed() or not went_well or self._engine.saver.has_stopped
        try:
            is_saved = self._loop.close(failed=failed)
            if not failed and self._loop.left_by_error is None:
                self._engine.events.write("end", step=self.step)
                if self._engine.stop_watch.received is not None and self.is_main and is_saved:
                    say("the run finished before it had to stop; there is nothing to resume.")
            if not is_saved:
                end_unsaved(
                    f"error: could not save all of run {self.run_dir} at its end (see the warnings above). Exiting with "
                    f"status {UNSAVED_END_STATUS}; repeat the command to resume from the newest checkpoint."
                    if self.is_main
                    else ""
                )
        except BaseException as error:
            failed = True
            # Report immediately: a launcher stops the other ranks as soon as the first one has
            # exited.
            if at_exit and isinstance(error, PartedError):
                how = f"The run was stopped; the same command {self._loop.how_it_resumes()}."
                tell_stuck(str(error), how, 1, speaks=error.is_reported_here)
            elif at_exit and self.is_main and isinstance(error, _OF_ALL_RANKS):
                say(f"error: {error}")
            raise
        finally:
            # At exit, a signal is too late, and must not change the exit status.
            if failed or not at_exit:
                self._engine.stop_watch.end()
            self._exit_status.end()
            self.release()
            self._engine.close(self.step, failed=failed or self._loop.left_by_error is not None)

    def _ended_well(self) -> bool:
        """Returns whether the script, which has finished, exited with status 0. An unknown status
        counts as success only if all epochs were trained: to resume a finished run costs little,
        but a run that is wrongly taken as finished loses the rest of its training."""
        if hasattr(sys, "ps1"):  # a notebook or interactive session, which ends as its user likes
            return True
        end = self._exit_status.now()
        if end is ScriptEnd.UNKNOWN and not self._loop.has_run_out:
            if not self._engine.saver.has_stopped and self.config.interval != "off":
                self._loop.say_end_unknown()
            return False
        return end is not ScriptEnd.FAILED

    def close_at_exit(self) -> None:
        """``close`` as the process exits. Python would exit with status 0 after an error here; this
        exits with 1."""
        try:
            self._close(at_exit=True)
        except BaseException as error:
            if isinstance(error, _OF_ALL_RANKS):  # rank 0 has printed it
                FailureRecord(summary=str(error).partition("\n")[0], report=f"error: {error}").write(failure_file())
            else:
                # Prints nothing while the launcher stops all ranks.
                sys.excepthook(type(error), error, error.__traceback__)
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            exit_now(1)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
