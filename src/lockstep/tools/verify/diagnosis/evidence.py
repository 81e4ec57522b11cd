"""*Evidence*: what the user's code did that could make two runs differ, and where.

Evidence is not proof: nearly all of it may be harmless (a clock that is read to print the speed). With ``trace="calls"``
each process that observes something (a rank, or one of its loader workers) writes
``trace/evidence-<rank>-<process>.jsonl``. Each line has ``kind``, ``what``, ``file`` and ``line`` of the user's code (null if
unknown), ``scope`` (``shard``: in the body of a loop over ``batch.shards``; ``data``: while samples were fetched; or
``outside`` of both), ``layer`` (in whose forward pass; null: none) and ``step`` (0: before the first). ``kind`` is one of

==============  ========================================================================================================
``clock``       the time was read
``entropy``     the operating system's randomness was used: ``os.urandom``, ``secrets``, ``uuid4``, a generator without a seed
``generator``   numbers were drawn from a generator that lockstep does not reseed, and that persists from shard to shard
``rank``        the rank or the number of processes was read
``process``     the process id or the host name was read
``worker``      the loader worker's id was read
``collective``  a collective was called inside a shard
``threads``     the number of threads was set
``state``       an attribute of a layer, data set or module changed in a forward pass or a fetch (no parameter or buffer)
``kept``        such an attribute has changed since the step before
``weights``     a parameter of a prepared model changed inside a shard
``file``        code of this file of the user's has run
==============  ========================================================================================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from typing_extensions import override

from lockstep.listener import Listener, Stage
from lockstep.plan.shards import MicroStep
from lockstep.tools.verify.trace.lines import TraceWriter


class Evidence(Listener):
    """Writes the evidence of this process and of those forked from it, each item once a process. Must follow the listeners
    that collect it.

    Args:
        run_dir: the run's directory.
        rank: of this process.
    """

    stage = Stage.LATE

    def __init__(self, run_dir: Path, rank: int) -> None:
        self.step = 0
        """The current step; 0: before the first."""
        self.in_shard = False
        """Whether the body of a loop over ``batch.shards`` is running."""
        self._run_dir = run_dir
        self._rank = rank
        self._writer: TraceWriter | None = None
        self._pid = 0
        self._seen: set[tuple[Any, ...]] = set()

    @property
    def scope(self) -> str:
        """The scope of what the script is doing now."""
        return "shard" if self.in_shard else "outside"

    def write(
        self, kind: str, what: str, location: tuple[str | None, int | None], scope: str, layer: str | None = None
    ) -> None:
        """Write a line, unless the same was written before, in any step."""
        pid = os.getpid()
        if pid != self._pid:  # a loader worker writes its own file
            self._pid, self._seen = pid, set()
            self._writer = TraceWriter(self._run_dir, f"evidence-{self._rank}-{pid}")
        key = (kind, what, location, scope, layer)
        if key not in self._seen and self._writer is not None:
            self._seen.add(key)
            file, line = location
            self._writer.write(kind=kind, what=what, file=file, line=line, scope=scope, layer=layer, step=self.step)

    @override
    def begin_step(self, step: int) -> None:
        self.step = step

    @override
    def begin_shard(self, micro: MicroStep) -> None:
        self.in_shard = True

    @override
    def end_shard(self) -> None:
        self.in_shard = False

    drop = end_shard

    @override
    def end_run(self, step: int, *, failed: bool) -> None:
        """Later evidence is not written."""
        if self._writer is not None:
            self._writer.close()
        self._writer, self._pid = None, os.getpid()
