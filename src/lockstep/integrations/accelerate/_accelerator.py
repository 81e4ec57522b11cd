"""``Accelerator``: accelerate's interface on lockstep's engine."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import GradientState
from accelerate.utils import DataLoaderConfiguration, DistributedType, GradientAccumulationPlugin, ProjectConfiguration
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import lockstep
from lockstep._base.errors import UsageError
from lockstep.integrations.accelerate import _host as host
from lockstep.integrations.accelerate import _settings as settings
from lockstep.integrations.accelerate._batches import TrainingBatch
from lockstep.integrations.accelerate._evaluated import EvaluatedBatch
from lockstep.integrations.accelerate._gathering import gather, reduce
from lockstep.integrations.accelerate._loader import PromisedLoader
from lockstep.integrations.accelerate._models import per_shard, with_noted_calls
from lockstep.integrations.accelerate._noting import NotingOptimizer
from lockstep.integrations.accelerate._outputs import Outputs
from lockstep.integrations.accelerate._promise import Promise

_REFUSED: Mapping[str, str] = {
    "load_state": "the same command resumes the run, from lockstep's own checkpoints. To begin with weights of another run, "
    "load them into the model before prepare()",
    "skip_first_batches": "the same command resumes the run at the right batch: loop over the prepared loader",
    "split_between_processes": "it gives each process a part of a list, and the loop here runs on all of it: use a "
    "DataLoader, in a loop with model.eval()",
    "trigger_sync_in_backward": "every accelerator.backward() synchronizes gradients",
    "lomo_backward": "LOMO updates weights within the backward pass of one process, before gradients are combined",
    "context_parallel_rank": "context parallelism is not supported",
    "tensor_parallel_rank": "tensor parallelism is not supported",
    "pipeline_parallel_rank": "pipeline parallelism is not supported",
    "maybe_context_parallel": "context parallelism is not supported",
    "deepspeed_plugin": "DeepSpeed is not supported",
    "scaler": "mixed_precision='fp16' is not supported here",
}
"""Attributes of accelerate's that this one does not have, and why."""


class Accelerator(Outputs):
    """accelerate's ``Accelerator`` (experimental), with bit-identical results on any number of
    processes.

    ::

        from lockstep.integrations.accelerate import Accelerator

        accelerator = Accelerator()
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in accelerator.epochs(3):  # in place of range(3): so that the run resumes
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    The script sees one process. Its loop over a prepared loader runs once per global batch, on
    every rank, and what it computes from the batch is noted (``Promise``). ``backward`` computes
    it, once per shard of the batch; afterwards, ``loss.item()`` is the mean over the global batch.
    What needs a value before is an error.

    Every rank must make it, before the model. ``accelerator.team`` is lockstep's ``Team``.

    Args:
        mixed_precision: ``no`` or ``bf16``; None: what ``accelerate launch`` was told, else ``no``.
        gradient_accumulation_steps: batches to a step of the optimizer, in
            ``accelerator.accumulate(model)``.
        cpu: whether to train on the CPU.
        dataloader_config: accepted. A batch of the script's loader is the global one, as with
            ``split_batches=True``.
        split_batches: accepted. See there.
        log_with: the trackers for ``accelerator.log``, besides lockstep's journal.
        project_dir: where they write.
        project_config: the same, and the names of ``save_state``.
        gradient_accumulation_plugin: in place of ``gradient_accumulation_steps``.
        step_scheduler_with_optimizer: False: a schedule steps also where the optimizer does not.
        kwargs_handlers: ``ProfileKwargs``.
        rng_types: accepted. All random streams are lockstep's.
        shards: number of parts of each global batch: runs with the same number have the same
            result.
        options: accelerate's other arguments, which are refused, and settings of ``lockstep.join``.

    Raises:
        ConfigError: an argument is not supported.
    """

    REFUSED = _REFUSED
    """Attributes of accelerate's that this one does not have, and why."""

    def __init__(
        self,
        *,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        split_batches: bool = True,
        log_with: Any = None,
        project_dir: Any = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Sequence[Any] = (),
        rng_types: Sequence[Any] | None = None,
        shards: int = 8,
        **options: Any,
    ) -> None:
        settings.refuse(options)
        profile = settings.profile_of(kwargs_handlers or ())
        precision = settings.precision_of(host.mixed_precision(mixed_precision))
        if cpu:
            options.setdefault("device", "cpu")
        team = lockstep.join(shards=shards, precision=precision, **options)
        project = project_config or ProjectConfiguration(project_dir=project_dir)
        if project_dir is not None and project.project_dir is None:
            project.set_directories(project_dir)
        super().__init__(team, project, log_with, profile)
        self.state = host.enter_single_process(team, mixed_precision, cpu=cpu or team.device.type == "cpu")
        host.refuse_local_sgd(Accelerator)
        self.mixed_precision = self.state.mixed_precision
        self.distributed_type = DistributedType.NO
        """That of a single process."""
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        plugin = gradient_accumulation_plugin or GradientAccumulationPlugin(
            num_steps=host.num_to_accumulate(gradient_accumulation_steps)
        )
        self.gradient_state = GradientState(plugin)
        host.set_sync_gradients(True)
        self._newest: int | None = None
        """The batch of the newest backward pass outside of ``accumulate``."""
        self._is_last: bool | None = True
        """Whether the current training batch is the last of its pass; None: unknown."""
        self._in_epochs = False
        self._has_begun = False
        self._accumulates = False
        """Whether the script is in ``accumulate``."""
        self._is_resumed = False
        """Whether the current pass was begun by an earlier launch."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        reason = self.REFUSED.get(
            name, "it has what training scripts use most. accelerator.team is lockstep's own interface"
        )
        raise AttributeError(f"lockstep's Accelerator has no {name!r}: {reason}. See docs/how-to/accelerate.md.")

    # Preparing

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Prepare models, optimizers, schedules and loaders, for training or evaluation. Other
        objects are returned unchanged.

        Every rank must call it, with equal objects in the same order.

        Returns:
            The prepared objects in the order given: a tuple, or the object itself if there is only
            one.
        """
        known = [place for place, item in enumerate(objects) if _is_prepared_by_team(item)]
        given = [
            getattr(objects[place], "optimizer", objects[place])
            if isinstance(objects[place], AcceleratedOptimizer)
            else objects[place]
            for place in known
        ]
        for item in given:
            if isinstance(item, LRScheduler) and isinstance(item.optimizer, AcceleratedOptimizer):
                item.optimizer = item.optimizer.optimizer
        made = dict(zip(known, self._engine_prepare(given), strict=True))
        result = [self._wrapped(item, made.get(place, item)) for place, item in enumerate(objects)]
        for place, item in enumerate(objects):
            if isinstance(item, LRScheduler):
                split = True
                wrapped = AcceleratedScheduler(item, self._of_schedule(item), self.step_scheduler_with_optimizer, split)
                self._schedulers.append(wrapped)
                result[place] = wrapped
        return result[0] if len(result) == 1 else tuple(result)

    prepare_model = prepare_optimizer = prepare_scheduler = prepare_data_loader = prepare

    def _engine_prepare(self, given: list[Any]) -> Sequence[Any]:
        if not given:
            return ()
        made = self.team.prepare(*given)
        return made if len(given) > 1 else (made,)

    def _wrapped(self, plain: Any, prepared: Any) -> Any:
        if isinstance(plain, nn.Module) and _is_prepared_by_team(plain):
            if not any(prepared is model for model in self._models):
                self._models.append(with_noted_calls(prepared))
            return prepared
        if isinstance(plain, Optimizer) and not isinstance(plain, AcceleratedOptimizer):
            self._optimizers.append(NotingOptimizer(prepared, self._counts))
            return self._optimizers[-1]
        if isinstance(plain, DataLoader):
            return PromisedLoader(self.team, plain, prepared, self._models, self)
        return plain

    def _of_schedule(self, schedule: LRScheduler) -> list[AcceleratedOptimizer]:
        return [optimizer for optimizer in self._optimizers if optimizer.optimizer is schedule.optimizer]

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Add objects with ``state_dict`` and ``load_state_dict`` to the run's state. Every rank
        must call it, before the loop."""
        for item in objects:
            self.team.register(f"custom_checkpoint_{len(self._registered)}", item)
            self._registered.append(item)

    # The loop

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Iterate over the numbers of epochs, in place of ``range(num_epochs)``: a resumed run
        begins where it was interrupted.

        Every rank must leave the loop at the same point.
        """
        self._in_epochs = True
        try:
            yield from self.team.epochs(num_epochs)
        finally:
            self._in_epochs = False

    def begin_step(self, is_last: bool | None, *, is_resumed: bool) -> None:
        """See Host."""
        self._is_resumed = is_resumed
        if not self._has_begun and self.team.step > 1:
            self._refuse_range()
        self._has_begun, self._is_last = True, is_last

    def skip_pass(self) -> None:
        """See Host."""
        self._refuse_range()

    def _refuse_range(self) -> None:
        """Refuse a resumed run whose script goes through all epochs again, unless ``epochs`` counts
        them."""
        if not self._in_epochs:
            raise UsageError(
                "this run resumes from a checkpoint, and the script begins with its first epoch again, by range(n) or the "
                "like: what it prints and counts would be of epochs that are not trained again. Write `for epoch in "
                "accelerator.epochs(n)`, and start the run from its beginning: --fresh, or Accelerator(fresh=True)."
            )

    def backward(self, loss: Any, *, weight: Any = None, reduction: str | None = None, **options: Any) -> None:
        """Compute the loss in each shard of its batch, and its gradient. Every rank must call it.
        Afterwards, its value is known.

        As accelerate's, it divides the loss by ``gradient_accumulation_steps``.

        Args:
            loss: what the script has computed from the batch: a mean over samples.
            weight: what each shard counts in the mean; None: its number of samples. For a mean over
                tokens, their number: ``weight=batch["labels"].ne(-100).sum()``.
            reduction: ``sum`` for a loss that is a sum over samples.
            options: of ``Tensor.backward``.

        Raises:
            UsageError: the loss was not computed from a batch of a prepared loader.
            LossError: it is not a number, is NaN, or is a sum without ``reduction`` saying so.
        """
        source = loss._node.source if isinstance(loss, Promise) and not loss._node.has_value else None
        if not isinstance(source, TrainingBatch):
            if isinstance(source, EvaluatedBatch):
                why = "no prepared model was in training mode, or gradients were off, when the loop over the loader began"
                remedy = "Call model.train() before that loop"
            elif isinstance(loss, Promise):
                why, remedy = "it was given to backward() before", "Compute it again"
            else:
                why = f"it is a {type(loss).__name__}, not computed from a batch of a prepared loader"
                remedy = "Loop over the loader that accelerator.prepare() returned, and call the model that it returned"
            raise UsageError(f"accelerator.backward(loss): {why}. {remedy}.")
        if not self._accumulates:
            self._note_accumulation(source)
        source.backward(loss, self.gradient_accumulation_steps, weight, reduction, options)

    def _note_accumulation(self, batch: TrainingBatch) -> None:
        """Notice that the script adds up gradients of several batches by itself, as by ``step % 2
        == 0``.

        Raises:
            UsageError: the run was resumed within this pass, so that the script's count is another.
        """
        counts = self._counts
        if counts["since"] and self._newest != batch.serial and not counts["by_hand"]:
            counts["by_hand"] = True
            if self.is_main_process:
                warnings.warn(
                    "the optimizer has not stepped since backward() of an earlier batch, outside of accelerator.accumulate(): "
                    "gradients are accumulated by a count of the script. The count of enumerate(loader) starts over if the "
                    "run resumes in mid-epoch, so that it would step after other batches: it will not resume there. Use "
                    "Accelerator(gradient_accumulation_steps=...) and `with accelerator.accumulate(model):`.",
                    stacklevel=3,
                )
        self._newest, counts["since"] = batch.serial, True
        if counts["by_hand"] and self._is_resumed:
            raise UsageError(
                "the run resumes in mid-epoch, and the script accumulates gradients of several batches by a count of its own, "
                "outside of accelerator.accumulate(). If it is the count of enumerate(loader), it has started over, so the "
                "optimizer would step after other batches than in a run that was not interrupted. Start the run from its "
                "beginning (--fresh), with Accelerator(gradient_accumulation_steps=...) and `with "
                "accelerator.accumulate(model):`, which counts through a resume."
            )

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Within the block, optimizers and schedules step with each
        ``gradient_accumulation_steps``-th batch, and with the last one of a pass."""
        state = self.gradient_state
        if state.num_steps > 1 and state.sync_with_dataloader and self._is_last is None:
            raise UsageError(
                f"gradient_accumulation_steps={state.num_steps} with a loader that has no len(): whether a batch is the "
                "last one, after which the optimizer steps, is unknown. Give the data set a __len__, or "
                "GradientAccumulationPlugin(num_steps=..., sync_with_dataloader=False)."
            )
        if state.sync_with_dataloader and self._is_last:
            self._counts["accumulated"] = 0
            host.set_sync_gradients(True)
        else:
            self._counts["accumulated"] += 1
            host.set_sync_gradients(self._counts["accumulated"] % state.num_steps == 0)
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = False

    @property
    def gradient_accumulation_steps(self) -> int:
        """Batches to a step of the optimizer."""
        return int(self.gradient_state.num_steps)

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        options = {**self.gradient_state.plugin_kwargs, "num_steps": value}
        self.gradient_state = GradientState(GradientAccumulationPlugin(**options))

    @property
    def sync_gradients(self) -> bool:
        """Whether optimizers step with this batch."""
        return bool(self.gradient_state.sync_gradients)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether an optimizer has skipped its step, because of a loss scale."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    @property
    def step(self) -> int:
        """Batches since the last step of the optimizers in ``accumulate``."""
        return int(self._counts["accumulated"])

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_``. Every rank must call it."""
        return self.team.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
        """``torch.nn.utils.clip_grad_value_``."""
        nn.utils.clip_grad_value_(parameters, clip_value)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Nothing: gradients are not scaled."""

    def no_sync(self, model: Any = None) -> contextlib.AbstractContextManager[None]:
        """Nothing: gradients of several batches add up anyway."""
        return contextlib.nullcontext()

    def join_uneven_inputs(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
        """Nothing: every rank has every batch."""
        return contextlib.nullcontext()

    def autocast(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[Any]:
        """The run's autocast, for computation outside of a prepared model."""
        return self.team.autocast()

    def per_shard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for values of a batch that is called once per shard, with the shard's tensors.

        For what cannot be noted line by line: conditions, shapes, random numbers, models that are
        not prepared::

            def noisy(x):
                return x + torch.randn(x.shape) * 0.1

            outputs = model(accelerator.per_shard(noisy)(batch["x"]))
        """
        return per_shard(function)

    # Values

    def gather(self, tensors: Any) -> Any:
        """The values over the whole batch, each row once, the same on every rank. Every rank must
        call it.

        In training, before ``backward``, values are not known yet, and are returned unchanged.
        """
        return gather(tensors)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """``gather``; of the last, smaller batch of an evaluation, at most as many rows as it has
        samples, as of ``loss.repeat(batch_size)``."""
        return gather(input_data, truncate=True)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """The values themselves: the batch is whole."""
        return tensor

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The values themselves: the batch is whole. Of a number that is computed per shard, before
        ``backward``, the mean or sum over the shards.

        Raises:
            ConfigError: the reduction is unknown.
        """
        return reduce(tensor, reduction)

    def free_memory(self, *objects: Any) -> list[None]:
        """Let go of prepared models, optimizers and schedules. The run's checkpoints still contain
        them."""
        self._models, self._optimizers, self._schedulers = [], [], []
        self._counts["accumulated"] = 0
        gc.collect()
        return [None] * len(objects)

    clear = free_memory


def _is_prepared_by_team(item: Any) -> bool:
    if isinstance(item, nn.Module):
        return next(item.parameters(), None) is not None or next(item.buffers(), None) is not None
    return isinstance(item, (Optimizer, LRScheduler, DataLoader))
