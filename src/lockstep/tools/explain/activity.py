"""What a thread is doing, in words, from its stack: of a script that does not use lockstep, which says nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from lockstep.base.tracebacks.frames import Frame
from lockstep.tools.explain.frames import stack_of
from lockstep.tools.explain.writes import write_in


def doing_in(frame: FrameType | None) -> str:
    """What the thread of this innermost frame is doing."""
    return "writing a file" if write_in(frame) is not None else doing_at(stack_of(frame))


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
