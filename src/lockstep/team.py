"""``Team``: what a script has in its hands."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from torch import Tensor, nn

from lockstep.comm.collectives import Collectives
from lockstep.comm.dtensors import full_tensor
from lockstep.comm.group import default_group
from lockstep.data.evaluation import Evaluation
from lockstep.data.loader import PreparedLoader
from lockstep.errors import PeerError, UsageError
from lockstep.loop.preparing import A, B, C, D, Kept
from lockstep.parts import Parts
from lockstep.prepare.model import unwrap
from lockstep.prepare.per_shard import PerShard
from lockstep.stopping import say


class Team(Collectives):
    """The processes of a run, seen from one of them, with the collectives of all of them. Made by ``join()``."""

    def __init__(self, parts: Parts) -> None:
        config, world = parts.config, parts.world
        super().__init__(default_group(), parts.transport, parts.phases.check_outside)
        self.config = config
        """The settings of the run, all of them definite."""
        self.world = world
        self.local_rank = world.local_rank
        self.world_size = world.world_size
        self.is_main = world.rank == 0
        """Whether this is rank 0, which prints and writes."""
        self.devices = parts.devices
        """The devices of this process: one, or as many as ``devices_per_process`` says."""
        self.device = parts.devices[0]
        """The first of them, where batches come."""
        self.run_dir = parts.context.run_dir
        self.num_shards = parts.phases.num_shards
        self._parts = parts
        self._loop = parts.loop
        self._phases = parts.phases
        self._closed = False
        if parts.recorder is not None:
            parts.recorder.watch_team(self)

    @property
    def seed(self) -> int:
        """Root of the run's random streams."""
        return self._phases.seed

    # Preparing

    # For type checkers: a loader becomes a PreparedLoader, all else stays what it is. Rarer orders are Any.
    @overload
    def prepare(self, one: A, /) -> A: ...
    @overload
    def prepare(self, loader: Iterable[Any], /) -> PreparedLoader: ...
    @overload
    def prepare(self, one: A, two: B, /) -> tuple[A, B]: ...
    @overload
    def prepare(self, one: A, loader: Iterable[Any], /) -> tuple[A, PreparedLoader]: ...
    @overload
    def prepare(self, one: A, two: B, three: C, /) -> tuple[A, B, C]: ...
    @overload
    def prepare(self, one: A, two: B, loader: Iterable[Any], /) -> tuple[A, B, PreparedLoader]: ...
    @overload
    def prepare(self, one: A, two: B, three: C, four: D, /) -> tuple[A, B, C, D]: ...
    @overload
    def prepare(self, one: A, two: B, three: C, loader: Iterable[Any], /) -> tuple[A, B, C, PreparedLoader]: ...
    @overload
    def prepare(self, one: A, two: B, three: C, four: D, loader: Iterable[Any], /) -> tuple[A, B, C, D, PreparedLoader]: ...
    @overload
    def prepare(self, *objects: Kept | Iterable[Any]) -> Any: ...
    def prepare(self, *objects: Any) -> Any:
        """Make the script's objects take part in the run. Every rank must call it, with equal objects in equal order.

        Models are moved to ``team.device`` (with several devices a process they stay where the script has put them), and
        given rank 0's parameters and buffers; the returned model stands for the user's, with the same names, methods and
        attributes. Optimizers, schedules and ``AveragedModel`` are returned themselves. A ``DataLoader``, or any iterable of
        ready batches, becomes a loader that yields a ``Batch`` a step: this process's shards of it. Loaders for evaluation are
        not prepared: see ``evaluate``.

        Returns:
            What was given, prepared, in the same order: a tuple, or the one object if there was one.

        Raises:
            UsageError: something was prepared before, or is of a kind that cannot be prepared.
            ModelError: a model without parameters, already wrapped, or on devices of others; an optimizer of parameters
                that are not a prepared model's.
            DataError: a loader that cannot be dealt out.
            MismatchError: the ranks gave different objects.
        """
        prepared = self._parts.prepare(objects)
        return prepared[0] if len(prepared) == 1 else tuple(prepared)

    def register(self, name: str, thing: Any) -> Any:
        """Make something of the script's own part of the run's state: it is in every checkpoint, and put back from it.

        Every rank must call it, before the training loop, with things that are the same on all ranks.

        Args:
            name: by which it is found again.
            thing: a tensor, a list or a dict (of tensors and plain values; they are filled again in place), a random
                generator, or an object with ``state_dict()`` and ``load_state_dict()``.

        Returns:
            The thing itself.

        Raises:
            UsageError: the name is taken, or the thing is of another kind.
        """
        if name in self._parts.state.registered:
            raise UsageError(f"register({name!r}, ...): the name is taken, give each thing one of its own")
        self._parts.state.register(name, thing)
        return thing

    def per_shard(self, name: str, start: Any) -> PerShard:
        """State that goes from batch to batch, for each shard its own: an RNN's hidden state, say.

        Every rank must call it, before the training loop. In the loop over ``batch.shards``, ``value`` of what is returned is
        that of the shard that runs, to read and to set. It is in every checkpoint, and does not depend on the number of
        processes.

        Args:
            name: by which it is found again.
            start: what every shard begins with: each gets a copy. Tensors and plain values, and lists and dicts of them.
        """
        made = PerShard(name, start, self._phases, self._parts.collectives)
        self.register(name, made)
        return made

    def best(self, metric: float, mode: str = "max") -> bool:
        """Keep the weights of all models in ``<run>/best`` if the metric is better than ever before in this run.

        Every rank must call it, outside of ``batch.shards``, with the same value: a result of ``evaluate``, say. The weights
        are written while training goes on; ``lockstep.load_weights(team.run_dir / "best")`` reads them.

        Args:
            metric: a number. NaN is never the best.
            mode: ``max`` if a larger one is better, ``min`` if a smaller one is.

        Returns:
            Whether it was the best.
        """
        self._phases.check_outside("team.best()")
        if self._loop.is_replaying:
            return False
        return self._parts.saver.keep_best(float(metric), mode, self.step, self.epoch)

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The user's own model behind a prepared one."""
        return unwrap(model)

    # In the loop

    @property
    def step(self) -> int:
        """Number of the step at hand, or of the last one outside of loops: steps taken so far in the run, from 1."""
        return self._loop.step

    @property
    def epoch(self) -> int:
        """Number of the epoch at hand, from 0."""
        return self._loop.epoch

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """The epoch numbers, 0 to ``num_epochs - 1``. Every rank must iterate it to its end, or leave it alike.

        In a run that was interrupted they begin with the epoch in which that happened.
        """
        return self._loop.epochs(num_epochs)

    def backward(
        self, loss: Tensor, weight: float | Tensor | None = None, *, reduction: str | None = None, **options: Any
    ) -> None:
        """The backward pass of one shard, in place of ``loss.backward()``. Called inside ``batch.shards``.

        When the phase ends, ``sum(w_i * g_i) / sum(w_i)`` over all shards of all ranks is added to ``.grad``.

        Args:
            loss: a scalar: the mean over the shard's samples (or tokens, or whatever ``weight`` counts).
            weight: how much the shard counts, 0 or more; None: its number of samples. Give the number of tokens where the
                loss is a mean over tokens. All shards give one, or none does. A number on the CPU costs no waiting.
            reduction: ``mean`` (so it is understood), or ``sum`` for a loss that is a sum over the shard's samples
                (``reduction="sum"`` of PyTorch's losses): then the gradients of all shards are added up, and not divided.
            options: ``retain_graph``, ``create_graph``, ``inputs``, as for ``Tensor.backward``.

        Raises:
            UsageError: before ``prepare``, or outside of ``batch.shards``.
            ConfigError: an unknown reduction, or a sum with a weight.
            LossError: the loss is not a scalar, is NaN, or is a sum where nothing was said of it.
            ModelError: the loss no longer depends on some parameters.
        """
        if not self._parts.preparation.has_models:
            raise UsageError("backward() before prepare(): prepare the model first, so that its gradients can meet")
        self._phases.backward(loss, weight, reduction, options)

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_``, also of parameters that ``fsdp`` deals out. Every rank must call it.

        Returns:
            The norm before clipping, the same on every rank.
        """
        self._phases.check_outside("team.clip_grad_norm_()")
        parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        return full_tensor(nn.utils.clip_grad_norm_(parameters, max_norm, norm_type))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The context of the run's precision, for computation outside of a prepared model's forward pass."""
        return self._parts.precision.autocast(self.device)

    def log(self, *, weight: float | None = None, **values: Any) -> None:
        """Write values to the run's journal, and show them. Never waits.

        Inside ``batch.shards`` they are averaged over all shards, by weight. Outside they must be the same on every rank, as
        ``batch[name]`` and results of evaluations are.

        Args:
            weight: how much this shard's values count; None: as in ``backward``, else its number of samples.
            values: numbers, or tensors with one element (which may be on a GPU, and stay there for now). None is left out.
        """
        if self._loop.is_replaying:
            return
        of_shard = self._phases.shard_weight()
        if of_shard is None and weight is not None:
            raise UsageError("team.log(weight=...) outside of batch.shards: there is nothing to be averaged there")
        weight = of_shard if weight is None else weight
        self._parts.log.add(self.epoch, self.step, weight, values)

    # Evaluating

    def evaluate(
        self, model: nn.Module | Sequence[nn.Module], loader: Iterable[Any], metrics: Sequence[Any] = ()
    ) -> Evaluation:
        """Evaluate on all processes, with the result of one: see ``Evaluation``. Every rank must call it.

        Args:
            model: one or several, set to evaluation mode inside the block.
            loader: a plain ``DataLoader`` or iterable of ready batches. (Of a prepared one, what it was made from.)
            metrics: objects for ``Evaluation.update``, if a process may be without a batch.
        """
        self._phases.check_outside("team.evaluate()")
        models = [model] if isinstance(model, nn.Module) else list(model)
        source, evaluation = self._parts.evaluated.next(loader, self.step, in_step=self._phases.in_step)
        return Evaluation(
            models,
            source,
            self._parts.collectives,
            self.device,
            self._evaluated,
            evaluation,
            metrics,
            together=self._parts.sync.forward_is_collective and self.world_size > 1,
        )

    def _evaluated(self, results: dict[str, float]) -> None:
        if self._loop.is_replaying:
            return
        self._parts.journal.scalars("evaluate", self.epoch, self.step, results)
        if self._parts.recorder is not None:
            self._parts.recorder.evaluated(self.step, results)

    # Talking to the others

    def print(self, *values: Any, **options: Any) -> None:
        """``print``, on rank 0 only."""
        if self.is_main:
            print(*values, **{"flush": True, **options})

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Rank 0 runs the block first, the others after it: for what should be done once, like a download.

        Every rank must enter it. If rank 0 fails in it, the others raise PeerError and do not run it.
        """
        self._phases.check_outside("team.main_first()")
        if not self.is_main and not self._parts.collectives.broadcast_object(None):
            raise PeerError("rank 0 failed in main_first(), so this rank did not run the block: see rank 0's error")
        done = False
        try:
            yield
            done = True
        finally:
            if self.is_main:
                self._parts.collectives.broadcast_object(done)

    # Beginning and end

    @property
    def is_closed(self) -> bool:
        """Whether the run is over for this process."""
        return self._closed

    def close(self) -> None:
        """Leave the run: write what is left, and close the process group. Called by itself when the script ends.

        Every rank must call it, unless the script has failed: then nothing is said to the others. It waits for them if a
        step was taken.
        """
        self._close(at_exit=False)

    def _close(self, *, at_exit: bool) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close_at_exit)
        error = sys.exc_info()[1]
        went_well = error is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        # Then the others may be gone, or not come.
        failed = self._loop.script_failed() or not went_well or self._parts.saver.has_stopped
        try:
            self._loop.close(failed=failed)
            if not failed:
                self._parts.journal.write("end", step=self.step)
                if self._parts.stop_watch.received is not None and self.is_main:
                    say("the run came to its end, and need not be started again.")
        finally:
            if failed or not at_exit:  # else a signal that comes now is too late, and must not give the end another status
                self._parts.stop_watch.end()
            self.release()
            self._parts.close(self.step, failed=failed)

    def close_at_exit(self) -> None:
        """``close``, where the process ends: an error must not pass for a success there, as Python has it."""
        try:
            self._close(at_exit=True)
        except BaseException:
            traceback.print_exc()
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(1)

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
