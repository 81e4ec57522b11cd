"""Explaining errors of a forward pass: which layer failed, why, and what to do."""

from __future__ import annotations

from torch import nn

from lockstep._base.errors import LockstepError, ModelError


def raise_better(error: Exception, model: nn.Module) -> None:
    """Raise a better error from ``error``, or return if there is none.

    Raises:
        ModelError: the pass failed for a known reason.
    """
    if "more than 1 value per channel" in str(error) and not isinstance(error, LockstepError):
        raise ModelError(
            f"{_where(error, model)} met a shard of one sample, which has no variance to normalize by. "
            "A shard has batch_size / shards samples (the run's first line has both), and fewer in the last global batch of an "
            "epoch: use a larger batch_size, fewer shards (shards= in join()), or DataLoader(..., drop_last=True).",
            code="shard-of-one-sample",
        ) from error


def _where(error: BaseException, model: nn.Module) -> str:
    """Describe the innermost layer in whose forward pass the error was raised."""
    names = {module: name for name, module in model.named_modules()}
    frames = error.__traceback__
    layer = model
    while frames is not None:
        module = frames.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and module in names:
            layer = module
        frames = frames.tb_next
    name = names[layer]
    return f"layer {name!r} ({type(layer).__name__})" if name else type(layer).__name__
