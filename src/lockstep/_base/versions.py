"""PyTorch's count of the changes of a tensor in place."""

from __future__ import annotations

import operator
from collections.abc import Callable

from torch import Tensor

version: Callable[[Tensor], int] = operator.attrgetter("_version")
"""The number of in-place changes of a tensor and its views, but for those through ``.data``.
(PyTorch has no public name for it. Read twice a step from each parameter.)"""
