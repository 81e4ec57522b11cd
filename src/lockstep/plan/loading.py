"""How a DataLoader fetches its batches, on which no answer depends."""

from __future__ import annotations

USUAL_PREFETCH = 2
"""PyTorch's own default for DataLoaders with workers."""
