"""``LockstepStrategy``: Lightning's Trainer on lockstep's engine, as one logical process.

Lightning's loops, hooks and callbacks run on every rank as if there were one process. Only the
strategy's step methods know of shards. For a training step, Lightning calls, in this order::

    training_step    per shard of this process: the module's step and team.backward
                     then all ranks exchange side effects and the summed gradient
    (zero_grad)      Lightning zeroes gradients, so training_step takes the new ones off before
    backward         puts the gradient of the global batch back
    (optimizer step)
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import Tensor
from typing_extensions import override

from lockstep._base.errors import UsageError
from lockstep._data.batches import count_samples
from lockstep._data.shared import keep
from lockstep.integrations.lightning import _host as host
from lockstep.integrations.lightning._epochs import Epochs
from lockstep.integrations.lightning._joined import joined
from lockstep.integrations.lightning._loaders import EvaluationLoader, Evaluations, HostBatch, TrainLoader
from lockstep.integrations.lightning._local import Local
from lockstep.integrations.lightning._refusals import LOOP, check_length, check_module, check_settings, check_trainer
from lockstep.integrations.lightning._step import Steps

_rank_zero: Any = rank_zero_only
_OWN = ("lightning.", "lockstep.")
_RETURN_LOSS = "Return only the loss; log other values with self.log, or append them to a list attribute."


class LockstepStrategy(SingleDeviceStrategy):
    """A strategy for Lightning's Trainer, with bit-identical results on any number of processes,
    through kills and resumes.

    ::

        trainer = L.Trainer(strategy=LockstepStrategy(shards=8), max_epochs=10)
        trainer.fit(model, loader)

    Create it at the top of the script, in every process, since it calls ``lockstep.join``. The
    loader's batches are global batches, and ``training_step`` runs once for each of their shards.
    Lightning sees a single process of world size 1. So all other code of the module and of
    callbacks runs once per step on every process, with equal values. Inside ``training_step``,
    ``global_rank`` is the number of the shard.

    Args:
        shards: the number of shards of each global batch. Results depend on this number and not on
            the number of processes.
        settings: further settings of ``lockstep.join``.

    Raises:
        ConfigError: Lightning determines one of the settings.
        UsageError: this process already joined a run.
    """

    strategy_name = "lockstep"

    def __init__(self, shards: int | None = None, **settings: Any) -> None:
        check_settings(settings)
        self._joined = joined({**({} if shards is None else {"shards": shards}), **settings})
        self.team = self._joined.team
        """The team of this process, for other features of lockstep."""
        super().__init__(self.team.device)
        self._steps: Steps | None = None
        self._in_step: int | None = None
        self._evaluations = Evaluations(self.team)
        self._epochs = Epochs(self._joined, self._evaluations)
        self._gradients: list[tuple[Tensor, Tensor | None]] | None = None
        _rank_zero.rank = self.team.rank
        # Lightning recommends sync_dist=True for several processes. Values are combined already.
        warnings.filterwarnings("ignore", message=r"It is recommended to use `self\.log\(")

    def close(self) -> None:
        """Leaves the run and restores the launcher's variables. It is called automatically when the
        script ends. Every rank must call it."""
        self._joined.close()

    # One logical process

    @property
    def global_rank(self) -> int:
        """The rank of this process; inside a step, the number of the shard (in an evaluation,
        0)."""
        return self.team.rank if self._in_step is None else self._in_step

    @global_rank.setter
    def global_rank(self, _: int) -> None:
        pass

    @property
    def local_rank(self) -> int:
        """The rank of this process on its machine."""
        return self.team.local_rank

    @local_rank.setter
    def local_rank(self, _: int) -> None:
        pass

    @property
    def node_rank(self) -> int:
        """The number 0 on the machine of rank 0, and 1 on others."""
        return int(self.team.rank != self.team.local_rank)

    @property
    @override
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        self.team.barrier()

    @override
    def broadcast(self, obj: Any, src: int = 0) -> Any:
        return self.team.broadcast_object(obj, src)

    @override
    def all_gather(self, tensor: Tensor, group: Any = None, sync_grads: bool = False) -> Tensor:
        if self._in_step is not None:
            raise UsageError(
                "self.all_gather inside a step is not supported: a step sees the samples of one shard only. For a loss over "
                "the global batch, use lockstep's own loop with team.all_gather_rows: docs/how-to/contrastive.md.",
                code="gather-in-step",
            )
        return tensor

    # Setup

    @override
    def setup(self, trainer: Trainer) -> None:
        check_trainer(trainer, self.team)
        self.trainer = trainer
        module = self.lightning_module
        assert module is not None
        super().setup(trainer)
        if trainer.state.fn != TrainerFn.FITTING:
            self._epochs.check_evaluation(trainer)
            for tensor in [*module.parameters(), *module.buffers()]:
                # A module that was not trained here may be initialized differently on each rank.
                self.team.broadcast(tensor.data)
        self._evaluations.model = self.model
        hooks = [f"on_{stage}_batch_{end}" for stage in ("validation", "test", "predict") for end in ("start", "end")]
        # A hook between two batches must see the effects of the first, and not yet of the second.
        self._evaluations.concurrent = not any(map(self._has_hook, hooks))
        self._steps = Steps(module, self.root_device)
        host.disable_batch_hook(module)
        host.disable_signal_handlers(trainer)
        self._epochs.attach(trainer)

    @override
    def setup_optimizers(self, trainer: Trainer) -> None:
        module = self.lightning_module
        assert module is not None
        try:
            super().setup_optimizers(trainer)
        except RuntimeError as error:
            if not host.is_about_several_optimizers(error):
                raise
            raise UsageError(
                f"{type(module).__name__}.configure_optimizers returned several optimizers, but LockstepStrategy needs exactly "
                f"one, with automatic optimization. {LOOP}",
                code="number-of-optimizers",
            ) from None
        check_module(trainer, module)
        schedules = [config.scheduler for config in self.lr_scheduler_configs]
        self.model, *_ = self.team.prepare(module, *self.optimizers, *schedules)

    @override
    def process_dataloader(self, dataloader: object) -> object:
        trainer = self.trainer
        if not trainer.training:
            stage = "test" if trainer.testing else "predict" if trainer.predicting else "val"
            check_length(dataloader, getattr(trainer, f"limit_{stage}_batches"), f"limit_{stage}_batches")
            return EvaluationLoader(dataloader, self._evaluations)
        check_length(dataloader, trainer.limit_train_batches, "limit_train_batches")
        return self._epochs.set_loader(TrainLoader(self.team.prepare(dataloader)))  # type: ignore[call-overload]

    @override
    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        if not isinstance(batch, HostBatch):
            raise UsageError(
                f"combined batches of several loaders (a {type(batch).__name__}) are not supported. To evaluate several "
                "loaders, pass a list; to train on several, zip the datasets into one, or use lockstep's own loop: "
                "docs/how-to/several-loaders.md.",
                code="several-loaders",
            )
        return batch  # to_shard() moves its samples when a step gets them.

    @override
    def teardown(self) -> None:
        # Lightning's own teardown moves weights to the CPU. Here they stay on their device, where
        # lockstep's last checkpoint and comparison read them.
        if self.lightning_module is not None:
            host.enable_batch_hook(self.lightning_module)
        self.precision_plugin.teardown()
        if self.accelerator is not None:
            self.accelerator.teardown()
        self.checkpoint_io.teardown()

    @override
    def on_exception(self, exception: BaseException) -> None:
        self._evaluations.end(exception)

    @override
    def on_train_start(self) -> None:
        self._epochs.start()

    @override
    def on_train_end(self) -> None:
        self._epochs.end()

    # Steps

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's step and its backward pass for each shard of this process. ``backward``
        puts the gradient of the global batch in place, since Lightning zeroes gradients before
        it."""
        batch, *others = args
        inner, module, parts = batch.inner, self.lightning_module, self.trainer.accumulate_grad_batches
        assert module is not None
        assert self._steps is not None
        begins = host.epoch_batch_idx(self.trainer) % parts == 0
        before = host.take_gradients(module) if begins else None
        sizes = {micro.shard: micro.num_samples for micro in inner.plan.micro_batches}
        for samples in inner.shards:
            shard = self.team.shard
            num_samples = sizes[shard] if shard in sizes else count_samples(samples)
            with self._as_rank(shard), self._steps.noting("training_step", num_samples) as noted:
                samples = host.to_shard(self.trainer, samples, self.root_device, 0)
                with self.precision_plugin.train_step_context():
                    output = self._run("training_step", samples, *others)
                loss = output.get("loss") if isinstance(output, dict) else output
                if loss is not None:
                    self.team.backward(loss / parts)
                    noted.result = loss.detach(), sorted(set(output) - {"loss"}) if isinstance(output, dict) else []
            inner.share(noted.shared())
        results = self._steps.repeat("training_step", inner.shared())
        if before is not None:
            self._gradients = host.take_gradients(module)
            host.put_gradients(before)
        return self._output([(num_samples, *result) for num_samples, result in results if result is not None])

    def _output(self, results: list[tuple[int, Tensor, list[str]]]) -> dict[str, Any] | None:
        """Returns the output of a step for Lightning: the mean loss over all samples of shards that
        have a loss."""
        if not results:
            return None
        total = math.fsum(num_samples * float(loss) for num_samples, loss, _ in results)
        loss = torch.tensor(total / sum(num_samples for num_samples, _, _ in results), dtype=results[0][1].dtype)
        self.team.log(loss=float(loss))
        extra = {
            name: Local(f"outputs[{name!r}] of training_step", _RETURN_LOSS) for _, _, names in results for name in names
        }
        return {"loss": loss.to(self.root_device), **extra}

    @override
    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        module = self.lightning_module
        assert module is not None
        self.precision_plugin.pre_backward(closure_loss, module)
        gradients, self._gradients = self._gradients, None
        if gradients is not None:
            host.put_gradients(gradients)
        return self.precision_plugin.post_backward(closure_loss, module)

    @override
    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        with self.precision_plugin.val_step_context():
            return self._evaluate("validation", *args)

    @override
    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        with self.precision_plugin.test_step_context():
            return self._evaluate("test", *args)

    @override
    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        with self.precision_plugin.predict_step_context():
            return self._evaluate("predict", *args)

    def _evaluate(self, stage: str, batch: HostBatch, *others: Any) -> Any:
        """Runs a step of an evaluation on the process that has the batch. Every process gets its
        result, if a hook reads it."""
        steps, evaluations = self._steps, self._evaluations
        assert steps is not None
        name, inner, mine = f"{stage}_step", batch.inner, None
        is_read = stage == "predict" or self._has_hook(f"on_{stage}_batch_end")
        for number, known, samples in evaluations.run(inner):
            # In a concurrent evaluation, this is not the batch that the loop has reached.
            others = (number, *others[1:]) if others else others
            num_samples = count_samples(samples) if known is None else known
            with self._as_rank(0), steps.noting(name, num_samples, concurrent=evaluations.concurrent) as noted:
                samples = host.to_shard(self.trainer, samples, self.root_device, _loader_index(others))
                output = self._run(name, samples, *others)
                noted.result = output if is_read else None
            mine = keep(noted.shared())
            if evaluations.concurrent:
                inner.share(mine)
        [(_, output)] = steps.repeat(name, [evaluations.exchange(inner, mine)])
        return output

    def _has_hook(self, name: str) -> bool:
        """Returns whether the script has a hook of this name. Lightning's own callbacks are
        ignored, except functions that the script passes to LambdaCallback."""
        callbacks = [
            each for each in host.callbacks(self.trainer) if not type(each).__module__.startswith(_OWN) or name in vars(each)
        ]
        assert self.lightning_module is not None
        return is_overridden(name, self.lightning_module) or any(
            name in vars(each) or is_overridden(name, each, Callback) for each in callbacks
        )

    def _run(self, name: str, *args: Any) -> Any:
        module = self.lightning_module
        assert module is not None
        if self.model is module or self.model is None:
            return getattr(module, name)(*args)
        return self._forward_redirection(self.model, module, name, *args)

    @contextlib.contextmanager
    def _as_rank(self, number: int) -> Iterator[None]:
        """Makes code inside the block see this number as its rank, as if each shard had a process.
        Code for rank 0 only then runs for shard 0, on any number of processes."""
        before = _rank_zero.rank
        self._in_step = number
        if self._steps is not None and number:
            _rank_zero.rank = number
        try:
            yield
        finally:
            self._in_step, _rank_zero.rank = None, before


def _loader_index(others: tuple[Any, ...]) -> int:
    return others[1] if len(others) > 1 else 0
