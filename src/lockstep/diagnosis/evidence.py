"""*Evidence*: what was done where in the user's code, and could make two runs differ.

That is not proof, as nearly all of it can be innocent (a clock, to print the speed). With ``trace="calls"`` or ``"kernels"``
each process that saw something (a rank, or one of its loader workers) writes ``trace/evidence-<rank>-<process>.jsonl``. Each
line has ``kind``, ``what``, ``file`` and ``line`` of the user's code (null where there is none), ``scope`` (``shard``: in the
body of a loop over ``batch.shards``, ``data``: while samples were fetched, or ``outside`` of both), ``layer`` (whose forward
pass it was in; null: none) and ``step`` (0: before the first). ``kind`` is one of

==============  ========================================================================================================
``clock``       the time was read
``entropy``     randomness of the operating system was drawn: ``os.urandom``, ``secrets``, ``uuid4``, a generator without a seed
``generator``   a generator that is none of lockstep's streams, and lives on from one shard to the next, was drawn from
``rank``        which process it is, or how many there are, was read
``process``     the number of the process, or the name of the machine, was read
``worker``      which loader worker it is was read
``collective``  a collective was called inside a shard
``threads``     the number of threads was set
``state``       an attribute of a layer, data set or module, no parameter and no buffer, changed in a forward pass or a fetch
``kept``        such an attribute is another than in the step before
``weights``     a parameter of a prepared model changed inside a shard
``kernel``      (``trace="kernels"``) PyTorch warned of a kernel that is not deterministic
``file``        a file of the user's whose code has run
==============  ========================================================================================================
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep
from lockstep.trace.lines import TraceWriter


class Evidence(Listener):
    """Writes what was seen in this process and in those forked from it, each thing once a process. Told of a step after those
    who look at it.

    Args:
        run_dir: the run's directory.
        rank: of this process.
    """

    def __init__(self, run_dir: Path, rank: int) -> None:
        self.step = 0
        """That is under way; 0: none was yet."""
        self.in_shard = False
        """Whether the script's code for a shard runs."""
        self._run_dir = run_dir
        self._rank = rank
        self._writer: TraceWriter | None = None
        self._pid = 0
        self._seen: set[tuple[Any, ...]] = set()

    @property
    def scope(self) -> str:
        """Of what the script does now."""
        return "shard" if self.in_shard else "outside"

    def write(
        self, kind: str, what: str, location: tuple[str | None, int | None], scope: str, layer: str | None = None
    ) -> None:
        """Write a line, unless all of it but the step was seen before."""
        pid = os.getpid()
        if pid != self._pid:  # a loader worker writes a file of its own, and has seen nothing yet
            self._pid, self._seen = pid, set()
            self._writer = TraceWriter(self._run_dir, f"evidence-{self._rank}-{pid}")
        key = (kind, what, location, scope, layer)
        if key not in self._seen and self._writer is not None:
            self._seen.add(key)
            file, line = location
            self._writer.write(kind=kind, what=what, file=file, line=line, scope=scope, layer=layer, step=self.step)

    def begin_step(self, step: int) -> None:
        """See Listener."""
        self.step = step

    def begin_shard(self, micro: MicroStep) -> None:
        """See Listener."""
        self.in_shard = True

    def end_shard(self) -> None:
        """See Listener."""
        self.in_shard = False

    drop = end_shard

    def end_run(self, step: int, *, failed: bool) -> None:
        """See Listener. What is seen later is not written."""
        if self._writer is not None:
            self._writer.close()
        self._writer, self._pid = None, os.getpid()
