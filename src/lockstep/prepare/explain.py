"""Explaining errors of a forward pass: which layer failed, why, and what to do."""

from __future__ import annotations

import re

from torch import nn

from lockstep.base.errors import LockstepError, ModelError
from lockstep.prepare.precision import CastScope, Precision

_NO_KERNEL = re.compile(r"not implemented for '(Half|BFloat16)'|Unsupported dtype (Half|BFloat16)|Low precision dtypes")
_MIXED_UP = re.compile(r"(same dtype|same type|scalar type|should be the same|dtypes match).*", re.IGNORECASE)
_NARROW = re.compile(r"half|bfloat16", re.IGNORECASE)


def explain(error: Exception, model: nn.Module, precision: Precision) -> None:
    """Raise a better error from ``error``, or return if there is none.

    Raises:
        ModelError: the pass failed for a known reason.
    """
    if isinstance(error, LockstepError):
        return
    message = str(error)
    if "more than 1 value per channel" in message:
        raise ModelError(
            f"{_where(error, model)} met a shard of one sample, which has no variance to normalize by. "
            "A shard has batch_size / shards samples (the run's first line has both), and fewer in the last global batch of an "
            "epoch: use a larger batch_size, fewer shards (shards= in join()), or DataLoader(..., drop_last=True)."
        ) from error
    if precision.narrow is None:
        return
    if _NO_KERNEL.search(message):
        raise ModelError(
            f"{_where(error, model)} uses an operation that PyTorch does not have in 16 bits on this device ({message}), with "
            f"precision={precision.name!r}. Compute it in float32 there, and continue as before: "
            "`x = operation(x.float()).to(x.dtype)`; or use precision='32-true'."
        ) from error
    if precision.reach is not CastScope.OPERATIONS and _MIXED_UP.search(message) and _NARROW.search(message):
        raise ModelError(
            f"{_where(error, model)} met tensors of two formats ({message}). With precision={precision.name!r} weights, "
            f"buffers and inputs are {str(precision.narrow).removeprefix('torch.')}; a tensor that is created in the forward "
            "pass, or kept in a plain attribute, must be too: create it with dtype=x.dtype, or register it as a buffer. With "
            f"precision={precision.name.split('-')[0] + '-mixed'!r} PyTorch casts automatically."
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
