"""What the loader workers of a rank do, when the rank waits for them.

They are forks of the rank, so they answer as it does (``asking``). Workers started in another way (``spawn``) do not: of them
there is what the kernel tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lockstep.explain.asking import ask_for, can_answer
from lockstep.explain.frames import Frame
from lockstep.explain.process import Facts, facts_of

_LOADER = "/torch/utils/data/dataloader.py"
_WAITING = ("_try_get_data", "_get_data", "_shutdown_workers")
_WORKER, _WORKS = "/torch/utils/data/_utils/worker.py", "_worker_loop"
_IDLE = "/multiprocessing/queues.py"
_MOST_ASKED = 16


@dataclass(frozen=True)
class LoaderWorker:
    """One that may be what its rank waits for."""

    pid: int
    facts: Facts
    frames: Sequence[Frame]
    """Innermost first; empty: it does not answer."""

    def describe(self) -> str:
        """What it does, in words; its stack is not in them."""
        if self.facts.state == "T":
            return f"which is stopped by a signal: `kill -CONT {self.pid}` lets it run on"
        if self.facts.state == "D":
            held_in = f" (in {self.facts.held_in})" if self.facts.held_in else ""
            return f"which the kernel holds{held_in}: a file system or a driver that does not answer"
        return "at:" if self.frames else "which does not answer"


def waits_for_loader(stack: Sequence[Sequence[Any]]) -> bool:
    """Whether a thread with these frames waits for loader workers."""
    return any(str(file).endswith(_LOADER) and name in _WAITING for file, _, name in stack)


def busy_workers(record: Mapping[str, Any]) -> list[LoaderWorker]:
    """The loader workers of the process of a record, one of this machine, that have something to do."""
    import psutil  # only here: it would delay the start of every process

    children = []
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(int(record["pid"])).children()
    workers = []
    for child in children[:_MOST_ASKED]:
        facts = facts_of(child.pid)
        if facts is None or facts.state in "ZX" or not can_answer(record, child.pid):
            continue
        frames = [] if facts.state == "T" else ask_for(record, child.pid) or []
        if facts.state == "T" or not frames or _is_busy(frames):
            workers.append(LoaderWorker(child.pid, facts, _of_script(frames)))
    return workers


def _is_busy(frames: Sequence[Frame]) -> bool:
    for called, (file, _, name) in pairwise(frames):
        if file.endswith(_WORKER) and name == _WORKS:
            return _IDLE not in called[0]
    return False  # no loader worker


def _of_script(frames: Sequence[Frame]) -> list[Frame]:
    """Without how it was started."""
    shown: list[Frame] = []
    for frame in frames:
        if "/torch/utils/data/_utils/" in frame[0]:
            break
        shown.append(frame)
    return shown
