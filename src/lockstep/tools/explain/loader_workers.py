"""What a rank's loader workers are doing while the rank waits for them.

Workers that are forks of the rank answer requests for their stack as it does. Of those started otherwise (``spawn``) only the
kernel's facts are known.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from lockstep.base.tracebacks.frames import Frame
from lockstep.journal.measure.split import LOADING
from lockstep.tools.explain.process import ProcessFacts, facts_of
from lockstep.tools.explain.stack_request import can_answer, request_stack

_LOADER = "/torch/utils/data/dataloader.py"
_WAITING = ("_try_get_data", "_get_data", "_shutdown_workers")
_WORKER_ROOM = "/torch/utils/data/_utils/"
_WORKER, _WORKER_LOOP = f"{_WORKER_ROOM}worker.py", "_worker_loop"
_QUEUE = "/multiprocessing/queues.py"
_MOST_ASKED = 16


@dataclass(frozen=True)
class LoaderWorker:
    """A worker that its rank may be waiting for."""

    pid: int
    facts: ProcessFacts
    frames: Sequence[Frame]
    """Its stack, innermost frame first, without PyTorch's worker loop; empty: it does not answer."""

    def describe(self) -> str:
        """What it does, in words, to be followed by its stack."""
        if self.facts.state == "stopped":
            return f"stopped by a signal: `kill -CONT {self.pid}` resumes it"
        return self.facts.why_blocked() or ("at:" if self.frames else "which does not answer")


def waits_for_loader(stack: Sequence[Sequence[Any]]) -> bool:
    """Whether a thread with this stack waits for loader workers."""
    return any(str(file).endswith(_LOADER) and name in _WAITING for file, _, name in stack)


def is_loading(stack: Sequence[Sequence[Any]], doing: Mapping[str, Any]) -> bool:
    """Whether a thread with this stack waits for its next batch, or makes it.

    ``doing``: what else is known of it, as in its record.
    """
    return waits_for_loader(stack) or doing.get("activity") == LOADING


def busy_workers(record: Mapping[str, Any]) -> list[LoaderWorker]:
    """The loader workers of a process of this machine, given its record, that are fetching a batch or do not answer."""
    import psutil  # imported here, since it would delay the start of every process

    children = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(int(record["pid"])).children()
    workers = []
    for child in children[:_MOST_ASKED]:
        facts = facts_of(child.pid)
        if facts is None or facts.state in ("zombie", "dead") or not can_answer(record, child.pid):
            continue
        frames = [] if facts.state == "stopped" else request_stack(record, child.pid) or []
        if not frames or _is_busy(frames):
            shown = list(takewhile(lambda frame: _WORKER_ROOM not in frame[0], frames))
            workers.append(LoaderWorker(child.pid, facts, shown))
    return workers


def _is_busy(frames: Sequence[Frame]) -> bool:
    """Whether it is a loader worker that does not wait for its next task."""
    for callee, (file, _, name) in pairwise(frames):
        if file.endswith(_WORKER) and name == _WORKER_LOOP:
            return _QUEUE not in callee[0]
    return False
