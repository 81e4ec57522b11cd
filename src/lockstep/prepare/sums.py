"""Detecting from the autograd graph that a loss is a sum over the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

_SUM = 2
"""``at::Reduction::Sum``, as PyTorch's losses save it for their backward pass."""


def is_sum(loss: Tensor, num_samples: int) -> bool:
    """Whether the last operation of a loss was a sum over something with one row per sample.

    PyTorch documents the saved values of graph nodes (``grad_fn._saved_*``). Sums followed by other operations are not detected
    here, but by ``lockstep verify``.
    """
    node: Any = loss.grad_fn
    if node is None or num_samples < 2:
        return False
    if getattr(node, "_saved_reduction", None) == _SUM:
        return True
    sizes: Sequence[int] = getattr(node, "_saved_self_sym_sizes", ())
    return node.name().startswith("SumBackward") and len(sizes) > 0 and sizes[0] == num_samples
