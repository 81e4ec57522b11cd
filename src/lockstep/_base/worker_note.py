"""What a loader worker notes for its rank while it works. The rank can read it even if the worker
is stopped in the next moment."""

from __future__ import annotations

from typing import Any

cell: Any = bytearray(1)
"""``cell[0]`` is 1 while this process makes a batch of a prepared loader. In a worker it is memory
that the rank sees."""
