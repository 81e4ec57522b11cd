"""Prints once how few samples BatchNorm sees, because global batches are split into shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from lockstep._listener import Listener, Stage
from lockstep._sync.buffers import BATCH_NORMS
from lockstep._world.machine.sizes import counted


def batch_size_of(loader: Any) -> int | None:
    """Returns the size of a loader's global batches; None: unknown, or not fixed."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def uses_batch_statistics(module: nn.Module) -> bool:
    """Returns whether a module now normalizes by statistics of the samples that it receives."""
    # Without running statistics (track_running_stats=False), also in evaluation mode.
    return isinstance(module, BATCH_NORMS) and (module.training or module.running_mean is None)


class SplitRemarks(Listener):
    """A listener that prints this when the first pass begins.

    Args:
        num_shards: the run's V.
    """

    stage = Stage.LATE

    def __init__(self, num_shards: int, say: Callable[[str], None]) -> None:
        self._num_shards, self._say = num_shards, say
        self._models: list[nn.Module] = []
        self._batch_sizes: list[int | None] = []

    @override
    def prepared(self, item: Any) -> None:
        # Kept until the script has put them, and the layers that it freezes, into their modes.
        if isinstance(item, nn.Module) and not isinstance(item, AveragedModel):
            self._models.append(item)

    @override
    def prepared_loader(self, batches: Iterable[Any]) -> None:
        self._batch_sizes.append(batch_size_of(batches))

    @override
    def begin_pass(self, epoch: int, num_epochs: int | None, num_steps: int | None, done: int) -> None:
        models, self._models = self._models, []
        names = [name for model in models for name, module in model.named_modules() if uses_batch_statistics(module)]
        if names:
            self._say(self._batch_norm_notice(names))

    def _batch_norm_notice(self, names: list[str]) -> str:
        layers = f"layer {names[0]!r}" if len(names) == 1 else f"{names[0]!r} and {counted(len(names) - 1, 'other layer')}"
        size = self._batch_sizes[0] if self._batch_sizes else None
        each = "the samples of a shard" if size is None else counted(-(-size // self._num_shards), "sample")
        how = f"1/{self._num_shards} of a global batch" if size is None else f"{size} / {self._num_shards} shards"
        return (
            f"BatchNorm ({layers}) normalizes over {each} ({how}), not over the global batch. GroupNorm and LayerNorm are "
            "unaffected."
        )
