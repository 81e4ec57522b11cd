"""Requests deterministic kernels from PyTorch, and records which of them it lacks: for ``trace="kernels"``."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import torch

from lockstep.tools.verify.diagnosis.evidence import Evidence
from lockstep.tools.verify.diagnosis.locations import location_of

_KERNEL = re.compile(r"(?P<kernel>\S+) does not have a deterministic implementation")


def watch_kernels(evidence: Evidence) -> None:
    """Record PyTorch's warnings as evidence until the process ends."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.filterwarnings("always", message=".*deterministic implementation.*")
    show = warnings.showwarning

    def note(message: Any, category: type[Warning], *rest: Any, **options: Any) -> None:
        warned = _KERNEL.search(str(message))
        if warned is None:
            show(message, category, *rest, **options)
        else:
            evidence.write("kernel", warned["kernel"], location_of(sys._getframe(1)) or (None, None), evidence.scope)

    warnings.showwarning = note
