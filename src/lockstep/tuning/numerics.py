"""Changes that may make steps faster but alter the answer: tried and undone, proposed and never applied."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from lockstep.machine.processor import native_formats
from lockstep.machine.threads import use_threads
from lockstep.precision import find_precision
from lockstep.prepare.model import formats_of, unwrap
from lockstep.prepare.scaling import LossScaling
from lockstep.tuning.session import Session
from lockstep.tuning.windows import Windows

_ROUGHLY = "all but the leading bits"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A setting of the process, a property of its models, or a size of its batches."""

    name: str
    how: str = ""
    """What to write to get it."""
    made: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Within this context it is in force; afterwards everything is as before."""
    why_not: str = ""
    """Why it is left out; empty: it is tried."""
    alters: str = "the last bits"
    """What it does to the answer."""
    remark: Callable[[], str] = str
    """What else was seen of it while it was in force."""
    failure: Callable[[], str] = str
    """Why it could not come into force after all."""
    larger: Callable[[float], Change | None] = lambda _: None
    """For one that has gained, given the time of a step with it: more of the same; None: there is no more. Every rank must
    call it."""


def threads(session: Session, _: Windows) -> list[Change]:
    """One thread a process, and one for each of its cores."""
    if session.on_gpu:
        return []
    numbers = sorted({1, max(1, int(session.cores))} - {torch.get_num_threads()})
    return [
        Change(
            name=f"{number} thread{'s' if number > 1 else ''} a process",
            how=f"--threads {number}",
            made=partial(_with_threads, number),
        )
        for number in numbers
    ]


def memory_formats(session: Session, _: Windows) -> list[Change]:
    """``channels_last`` for models with convolutions."""
    models = map(unwrap, session.models)
    images = [model for model in models if any(isinstance(module, nn.Conv2d) for module in model.modules())]
    # With several processes the gradient buckets were laid out for the model as it was prepared.
    if not images or session.world_size > 1:
        return []
    how = "model.to(memory_format=torch.channels_last) before team.prepare()"
    return [Change(name="channels last", how=how, made=partial(_laid_out, images))]


def precisions(session: Session, _: Windows) -> list[Change]:
    """16-bit operations as autocast chooses them, in the formats of this device, and TF32 on a GPU."""
    config = session.config
    if config.precision != "32-true" or not session.models:
        return []
    native = native_formats()
    if session.on_gpu:
        native = {"float16", *(("bfloat16",) if torch.cuda.is_bf16_supported(including_emulation=False) else ())}
    changes = []
    for name, format_name in (("bf16-mixed", "bfloat16"), ("16-mixed", "float16")):
        why_not = "" if format_name in native else f"this processor emulates {format_name}"
        made = partial(_in_precision, session, name)
        changes.append(Change(name=name, how=f"--precision {name}", made=made, why_not=why_not, alters=_ROUGHLY))
    if session.on_gpu and torch.get_float32_matmul_precision() == "highest":
        how = 'torch.set_float32_matmul_precision("high") before lockstep.join()'
        changes.append(Change(name="TF32", how=how, made=_with_tf32, alters=_ROUGHLY))
    return changes


@contextlib.contextmanager
def _with_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    _set_threads(number)
    try:
        yield
    finally:
        _set_threads(before)


def _set_threads(number: int) -> None:
    torch.set_num_threads(number)
    use_threads(number)


@contextlib.contextmanager
def _laid_out(models: list[nn.Module]) -> Iterator[None]:
    for model in models:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        for model in models:
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@contextlib.contextmanager
def _in_precision(session: Session, name: str) -> Iterator[None]:
    precision = find_precision(name)
    formats = [formats_of(model) for model in session.models]
    before = [each.precision for each in formats]
    for each in formats:
        each.precision = precision
    if precision.scales_loss:
        session.watched.scale_by(LossScaling(session.device.type))
    try:
        yield
    finally:
        for each, old in zip(formats, before, strict=True):
            each.precision = old
        if precision.scales_loss:
            session.watched.scale_by(None)


@contextlib.contextmanager
def _with_tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
