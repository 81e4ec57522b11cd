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
    "load_state": "lockstep resumes from its own checkpoints when you repeat the command. To start from weights of another "
    "run, load them into the model before prepare()",
    "skip_first_batches": "a resumed run continues at the right batch. Loop over the prepared loader",
    "split_between_processes": "it passes a different part of a list to each process, but here each process runs the whole "
    "loop. Use a DataLoader, in a loop with model.eval()",
    "trigger_sync_in_backward": "every accelerator.backward() synchronizes gradients. Remove the call",
    "lomo_backward": "LOMO updates weights during the backward pass of one process, before gradients are combined. Use an "
    "optimizer with a step()",
    "context_parallel_rank": "context parallelism is not supported",
    "tensor_parallel_rank": "tensor parallelism is not supported",
    "pipeline_parallel_rank": "pipeline parallelism is not supported",
    "maybe_context_parallel": "context parallelism is not supported",
    "deepspeed_plugin": "DeepSpeed is not supported",
    "scaler": "mixed_precision='fp16' is not supported here. Use 'bf16'",
}
"""The reason for each attribute of accelerate's ``Accelerator`` that is not supported."""


class Accelerator(Outputs):
    """A replacement for accelerate's ``Accelerator`` (experimental), with bit-identical results on
    any number of processes.

    ::

        from lockstep.integrations.accelerate import Accelerator

        accelerator = Accelerator()
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in accelerator.epochs(3):  # instead of range(3), so that the run can resume
            for batch in loader:
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    The script sees one process. Its loop over a prepared loader runs once per global batch, on
    every rank. The operations on the batch are recorded (``Promise``), and ``backward`` computes
    them once per shard of the batch. After ``backward``, ``loss.item()`` is the mean over the
    global batch. Reading a value before ``backward`` is an error.

    Every rank must create it, before the model. ``accelerator.team`` is lockstep's ``Team``.

    Args:
        mixed_precision: ``no`` or ``bf16``; None: the value of ``accelerate launch``, by default
            ``no``.
        gradient_accumulation_steps: the number of global batches per optimizer step, in
            ``accelerator.accumulate(model)``.
        cpu: whether to train on the CPU.
        dataloader_config: accepted and ignored. Batches of the script's loader are always global
            batches, as with ``split_batches=True``.
        split_batches: accepted and ignored, for the same reason.
        log_with: the trackers for ``accelerator.log``, in addition to lockstep's event log.
        project_dir: the directory for trackers and ``save_state``.
        project_config: accelerate's project configuration, with the directory and the names that
            ``save_state`` uses.
        gradient_accumulation_plugin: accelerate's plugin, instead of
            ``gradient_accumulation_steps``.
        step_scheduler_with_optimizer: whether schedules skip the batches on which the optimizer
            does not step.
        kwargs_handlers: a list with at most one ``ProfileKwargs``, and
            ``DistributedDataParallelKwargs`` without a hook.
        rng_types: accepted and ignored. All random streams are lockstep's.
        shards: the number of shards of each global batch. Results depend on this number and not on
            the number of processes.
        options: settings of ``lockstep.join``. Other arguments of accelerate's are refused.

    Raises:
        ConfigError: an argument is not supported.
    """

    REFUSED = _REFUSED
    """The reason for each attribute of accelerate's ``Accelerator`` that is not supported."""

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
        """The distributed type of a single process, the only one that the script sees."""
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        plugin = gradient_accumulation_plugin or GradientAccumulationPlugin(
            num_steps=host.num_to_accumulate(gradient_accumulation_steps)
        )
        self.gradient_state = GradientState(plugin)
        host.set_sync_gradients(True)
        self._newest: int | None = None
        """The number of the batch of the latest backward pass outside of ``accumulate``."""
        self._is_last: bool | None = True
        """Whether the current training batch is the last of its pass; None: unknown."""
        self._in_epochs = False
        self._has_begun = False
        self._accumulates = False
        """Whether the script is inside ``accumulate``."""
        self._is_resumed = False
        """Whether an earlier launch began the current pass."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        reason = self.REFUSED.get(
            name, "it supports only what most training scripts use. Use accelerator.team, lockstep's own interface"
        )
        raise AttributeError(f"lockstep's Accelerator has no {name!r}: {reason}. See docs/how-to/accelerate.md.")

    # Preparing

    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Prepares models, optimizers, schedules and loaders for training or evaluation. Returns
        other objects unchanged.

        Every rank must call it, with equal objects in the same order.

        Returns:
            The prepared objects in the order of the arguments: a tuple, or the object itself if
            there is only one.
        """
        known = [place for place, item in enumerate(objects) if _is_prepared_by_team(item)]
        given = [
            getattr(objects[place], "optimizer", objects[place])
            if isinstance(objects[place], AcceleratedOptimizer)
            else objects[place]
            for place in known
        ]
        for item in given:
            # A schedule that was created with a prepared optimizer points to accelerate's wrapper.
            # lockstep prepares only schedules of optimizers that it knows.
            if isinstance(item, LRScheduler) and isinstance(item.optimizer, AcceleratedOptimizer):
                item.optimizer = item.optimizer.optimizer
        made = dict(zip(known, self._engine_prepare(given), strict=True))
        result = [self._wrapped(item, made.get(place, item)) for place, item in enumerate(objects)]
        for place, item in enumerate(objects):
            if isinstance(item, LRScheduler):
                # Batches are global batches, so a schedule steps once per batch.
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
        """Adds objects with ``state_dict`` and ``load_state_dict`` to the run's state. Every rank
        must call it, before the loop."""
        for item in objects:
            self.team.register(f"custom_checkpoint_{len(self._registered)}", item)
            self._registered.append(item)

    # The loop

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Iterates over epoch numbers, instead of ``range(num_epochs)``. A resumed run continues in
        the epoch in which it was interrupted.

        Every rank must leave the loop at the same point.
        """
        self._in_epochs = True
        try:
            yield from self.team.epochs(num_epochs)
        finally:
            self._in_epochs = False

    def begin_step(self, is_last: bool | None, *, is_resumed: bool) -> None:
        """Records the position of the next training batch (of ``Host``)."""
        self._is_resumed = is_resumed
        if not self._has_begun and self.team.step > 1:
            self._refuse_range()
        self._has_begun, self._is_last = True, is_last

    def skip_pass(self) -> None:
        """Checks that the script counts epochs with ``epochs`` (of ``Host``)."""
        self._refuse_range()

    def _refuse_range(self) -> None:
        """Refuses a resumed run whose script counts its epochs without ``epochs``, so that it
        starts again with its first epoch."""
        if not self._in_epochs:
            raise UsageError(
                "this run resumes, but the script counts epochs from the first again (range(n)), so it would print and count "
                "epochs that are not trained again. Write `for epoch in accelerator.epochs(n)` and start the run over with "
                "--fresh (or Accelerator(fresh=True)).",
                code="epochs-by-range",
            )

    def backward(self, loss: Any, *, weight: Any = None, reduction: str | None = None, **options: Any) -> None:
        """Computes the loss and its gradient in each shard of the batch. Every rank must call it.
        After the call, the value of the loss is known.

        Like accelerate's method, it divides the loss by ``gradient_accumulation_steps``.

        Args:
            loss: a value that the script computed from the batch: a mean over samples.
            weight: the weight of each shard in the mean; None: its number of samples. For a mean
                over tokens, the number of tokens: ``weight=batch["labels"].ne(-100).sum()``.
            reduction: ``sum`` for a loss that is a sum over samples.
            options: arguments of ``Tensor.backward``.

        Raises:
            UsageError: the loss was not computed from a batch of a prepared loader.
            LossError: the loss is not a number, is NaN, or is a sum without ``reduction="sum"``.
        """
        source = loss._node.source if isinstance(loss, Promise) and not loss._node.has_value else None
        if not isinstance(source, TrainingBatch):
            if isinstance(source, EvaluatedBatch):
                why = "no prepared model was in training mode, or gradients were off, when the loop over the loader started"
                remedy = "Call model.train() before the loop"
                code = "backward-in-evaluation"
            elif isinstance(loss, Promise):
                why, remedy = "this loss was already passed to backward()", "Compute it again"
                code = "backward-twice"
            else:
                why = f"the loss is a {type(loss).__name__} that was not computed from a batch of a prepared loader"
                remedy = "Loop over the loader and call the model that accelerator.prepare() returned"
                code = "loss-without-batch"
            raise UsageError(f"accelerator.backward(loss): {why}. {remedy}.", code=code)
        if not self._accumulates:
            self._note_accumulation(source)
        source.backward(loss, self.gradient_accumulation_steps, weight, reduction, options)

    def _note_accumulation(self, batch: TrainingBatch) -> None:
        """Detects that the script accumulates gradients of several batches itself, for example with
        ``step % 2 == 0``.

        Raises:
            UsageError: the run resumed inside this pass, so the script's count has another value
                than without the interruption.
        """
        counts = self._counts
        if counts["since"] and self._newest != batch.serial and not counts["by_hand"]:
            counts["by_hand"] = True
            if self.is_main_process:
                warnings.warn(
                    "the script accumulates gradients itself, without accelerator.accumulate(). Its count (enumerate(loader)) "
                    "would restart from 0 after a resume inside an epoch, so this run cannot resume there. Use "
                    "Accelerator(gradient_accumulation_steps=...) and `with accelerator.accumulate(model):`.",
                    stacklevel=3,
                )
        self._newest, counts["since"] = batch.serial, True
        if counts["by_hand"] and self._is_resumed:
            raise UsageError(
                "the run resumes inside an epoch, but the script accumulates gradients itself (enumerate(loader)), and its "
                "count has restarted from 0, so the optimizer would step after different batches. Use "
                "Accelerator(gradient_accumulation_steps=...) with accelerator.accumulate(model), and start over with "
                "--fresh.",
                code="accumulation-by-script",
            )

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Module) -> Iterator[None]:
        """Makes optimizers and schedules inside the block step only after every
        ``gradient_accumulation_steps``-th batch, and after the last batch of a pass."""
        state = self.gradient_state
        if state.num_steps > 1 and state.sync_with_dataloader and self._is_last is None:
            raise UsageError(
                f"gradient_accumulation_steps={state.num_steps} needs a loader with a length: the optimizer also steps after "
                "the last batch, which is unknown here. Define __len__ in the dataset, or pass "
                "GradientAccumulationPlugin(num_steps=..., sync_with_dataloader=False).",
                code="accumulation-without-length",
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
        """The number of batches per optimizer step."""
        return int(self.gradient_state.num_steps)

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        options = {**self.gradient_state.plugin_kwargs, "num_steps": value}
        self.gradient_state = GradientState(GradientAccumulationPlugin(**options))

    @property
    def sync_gradients(self) -> bool:
        """Whether optimizers step after this batch."""
        return bool(self.gradient_state.sync_gradients)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether an optimizer skipped its step because of the loss scale."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers)

    @property
    def step(self) -> int:
        """The number of batches since the last optimizer step in ``accumulate``."""
        return int(self._counts["accumulated"])

    def clip_grad_norm_(self, parameters: Iterable[Tensor] | Tensor, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clips gradients as ``torch.nn.utils.clip_grad_norm_`` does. Every rank must call it."""
        return self.team.clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Iterable[Tensor] | Tensor, clip_value: float) -> None:
        """Clips gradients as ``torch.nn.utils.clip_grad_value_`` does."""
        nn.utils.clip_grad_value_(parameters, clip_value)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Does nothing: gradients are not scaled."""

    def no_sync(self, model: Any = None) -> contextlib.AbstractContextManager[None]:
        """Returns an empty context: gradients of several batches add up without it."""
        return contextlib.nullcontext()

    def join_uneven_inputs(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
        """Returns an empty context: every rank runs the loop for every batch."""
        return contextlib.nullcontext()

    def autocast(self, *_: Any, **__: Any) -> contextlib.AbstractContextManager[Any]:
        """Returns the run's autocast, for computation outside of a prepared model."""
        return self.team.autocast()

    def per_shard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that accepts values of a batch, and calls ``function`` once per shard
        with the shard's tensors.

        Use it for code that cannot be recorded line by line: conditions, shapes, random numbers,
        models that are not prepared::

            def noisy(x):
                return x + torch.randn(x.shape) * 0.1

            outputs = model(accelerator.per_shard(noisy)(batch["x"]))
        """
        return per_shard(function)

    # Values

    def gather(self, tensors: Any) -> Any:
        """Returns the values over the global batch, each row once, equal on every rank. Every rank
        must call it.

        During training, values that are unknown before ``backward`` are returned unchanged.
        """
        return gather(tensors)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Returns ``gather(input_data)``, without the rows beyond the samples of a smaller last
        batch of an evaluation, such as ``loss.repeat(batch_size)`` has."""
        return gather(input_data, truncate=True)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Returns the tensor unchanged: values already cover the global batch."""
        return tensor

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Returns known values unchanged, since they already cover the global batch. Before
        ``backward``, returns the mean or sum over the shards of a number.

        Raises:
            ConfigError: the reduction is unknown.
        """
        return reduce(tensor, reduction)

    def free_memory(self, *objects: Any) -> list[None]:
        """Drops the references to prepared models, optimizers and schedules. The run's checkpoints
        still contain them."""
        self._models, self._optimizers, self._schedulers = [], [], []
        self._counts["accumulated"] = 0
        gc.collect()
        return [None] * len(objects)

    clear = free_memory


def _is_prepared_by_team(item: Any) -> bool:
    if isinstance(item, nn.Module):
        # Criteria such as nn.CrossEntropyLoss() are modules too, and contain nothing to train.
        return next(item.parameters(), None) is not None or next(item.buffers(), None) is not None
    return isinstance(item, (Optimizer, LRScheduler, DataLoader))
