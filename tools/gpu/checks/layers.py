"""Layers and losses of which some have no deterministic kernel on CUDA: each runs forward and
backward four times, to see whether it raises, and whether its results differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gpu.checks.models import Block
from gpu.checks.training import digest

Run = Callable[[], dict[str, Tensor]]
"""One forward and backward pass: the loss, and gradients by name."""
RAISES, DIFFERS, SAME = "raises", "differs", "same"


def layers(device: torch.device, *, tiny: bool) -> Iterator[tuple[str, Run]]:
    """Each by its name, with inputs that are the same in every pass."""
    batch, size, length, width = (2, 8, 8, 16) if tiny else (16, 64, 256, 256)
    torch.manual_seed(2)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape).to(device).requires_grad_()

    images, logits, classes = (
        make(batch, 3, size, size),
        make(batch, 5, size, size),
        torch.randint(0, 5, (batch, size, size)),
    )
    classes = classes.to(device)
    yield "cross entropy of images", _passes(lambda: functional.cross_entropy(logits, classes), logits)
    flat = logits.detach().flatten(2).transpose(1, 2).flatten(0, 1).requires_grad_()
    yield "the same, flattened", _passes(lambda: functional.cross_entropy(flat, classes.flatten()), flat)

    spoken = make(length, batch, 12)
    targets, lengths = torch.randint(1, 12, (batch, length // 4)).to(device), torch.full((batch,), length)

    def ctc() -> Tensor:
        return functional.ctc_loss(spoken.log_softmax(2), targets, lengths, torch.full((batch,), length // 4))

    yield "CTC", _passes(ctc, spoken)
    yield "AdaptiveAvgPool2d(7)", _passes(lambda: functional.adaptive_avg_pool2d(images, 7).square().sum(), images)
    yield "ReflectionPad2d(1)", _passes(lambda: functional.pad(images, (1, 1, 1, 1), "reflect").square().sum(), images)

    query, key, value = (make(batch, 4, length, width // 4) for _ in range(3))
    mask = (torch.rand(length, length) < 0.8).to(device) | torch.eye(length, dtype=torch.bool, device=device)

    def attention(dtype: torch.dtype, **options: Any) -> Callable[[], Tensor]:
        def attend() -> Tensor:
            seen = functional.scaled_dot_product_attention(query.to(dtype), key.to(dtype), value.to(dtype), **options)
            return seen.float().square().sum()

        return attend

    ways: dict[str, dict[str, Any]] = {"a mask": {"attn_mask": mask}, "dropout": {"dropout_p": 0.1}}
    for dtype in (torch.float32, torch.bfloat16):
        for name, options in ways.items():
            yield f"attention with {name}, {dtype}", _passes(attention(dtype, **options), query, key, value)

    table, tokens = make(64, width), torch.randint(0, 8, (batch, length)).to(device)
    yield "an embedding with repeated tokens", _passes(lambda: functional.embedding(tokens, table).square().sum(), table)
    block, hidden = Block(width, 4, 0.1).to(device), make(batch, length, width)
    # Inductor's kernels are for a GPU; on a CPU it takes long to build them.
    compiled = torch.compile(block, backend="inductor" if device.type == "cuda" else "eager")
    yield "a compiled block", _passes(lambda: compiled(hidden).square().sum(), hidden, *block.parameters())


def _passes(loss: Callable[[], Tensor], *inputs: Tensor) -> Run:
    def run() -> dict[str, Tensor]:
        torch.manual_seed(3)
        result = loss()
        gradients = torch.autograd.grad(result, inputs)
        return {"loss": result, **{str(number): gradient for number, gradient in enumerate(gradients)}}

    return run


def examine(run: Run, *, deterministic: bool) -> tuple[str, str]:
    """``raises``, ``differs`` or ``same``, and the error's first line.

    Args:
        run: is called four times.
        deterministic: whether kernels must be.
    """
    with _deterministic(deterministic):
        try:
            return (DIFFERS if len({digest(run()) for _ in range(4)}) > 1 else SAME), ""
        except RuntimeError as error:
            return RAISES, str(error).partition("\n")[0]


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def survey(device: torch.device, *, tiny: bool) -> dict[str, dict[str, str]]:
    """What became of each layer, with and without deterministic algorithms."""
    found = {}
    for name, run in layers(device, tiny=tiny):
        default, _ = examine(run, deterministic=False)
        strict, error = examine(run, deterministic=True)
        found[name] = {"default": default, "deterministic": strict, **({"error": error} if error else {})}
    return found
