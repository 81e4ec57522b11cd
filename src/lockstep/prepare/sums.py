"""A loss that is summed over the batch, where a mean was expected: seen in the graph that computed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

_SUM = 2
"""``at::Reduction::Sum``, as PyTorch's losses save it for their backward pass."""


def is_sum(loss: Tensor, num_samples: int) -> bool:
    """Whether the last thing that was done for a loss was to add up something with a row a sample.

    PyTorch documents that the nodes of its graph show what they save (``grad_fn._saved_*``). What is not seen here, since more
    was computed afterwards, ``lockstep verify`` finds.
    """
    node: Any = loss.grad_fn
    if node is None or num_samples < 2:
        return False
    if getattr(node, "_saved_reduction", None) == _SUM:
        return True
    sizes: Sequence[int] = getattr(node, "_saved_self_sym_sizes", ())
    return node.name().startswith("SumBackward") and len(sizes) > 0 and sizes[0] == num_samples
