"""Explains errors of a forward pass: the layer that failed, the cause, and the remedy."""

from __future__ import annotations

from torch import nn

from lockstep._base.errors import LockstepError, ModelError


def raise_better(error: Exception, model: nn.Module) -> None:
    """Raises a better error from ``error``, or returns if there is none.

    Raises:
        ModelError: the cause is known.
    """
    if "more than 1 value per channel" in str(error) and not isinstance(error, LockstepError):
        raise ModelError(
            f"{_where(error, model)} received a shard of one sample, which has no variance to normalize by. A shard has "
            "batch_size / shards samples, and fewer in the last batch of an epoch. Use a larger batch_size, fewer shards "
            "(shards= in join()), or DataLoader(..., drop_last=True).",
            code="shard-of-one-sample",
        ) from error


def _where(error: BaseException, model: nn.Module) -> str:
    """Describes the innermost layer in whose forward pass the error was raised."""
    # The traceback has the frame of each forward(), outermost first, with its ``self``.
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
