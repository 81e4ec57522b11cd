"""What a thread is doing, in words, from its stack: of a script that does not use lockstep, which says nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.base.tracebacks.frames import Frame


def doing_at(stack: Sequence[Frame]) -> str:
    """What a thread with this stack, innermost frame first, is doing."""
    return next((doing for file, _, name in stack if (doing := _doing(file, name))), "in the script")


def _doing(file: str, name: str) -> str:
    """Empty: the frame does not tell."""
    if "/torch/" not in file:
        return ""
    if "/torch/utils/data/" in file:
        return "getting a batch from the loader"
    if name == "_engine_run_backward":
        return "in the backward pass"
    if "/torch/optim/" in file:
        return "in the script"
    is_call = file.endswith("/torch/nn/modules/module.py") and name.endswith("_call_impl")
    return "in the forward pass" if is_call else ""
