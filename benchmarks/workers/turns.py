"""A worker's side of taking turns: see ``_crew``."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Named pipes (see ``_hosts.LaunchedCrew``), or else the standard streams: then what libraries print
# goes to standard error.
if pipes := os.environ.get("TURNS_THROUGH"):
    _orders = Path(pipes, f"{os.environ['RANK']}.go").open()  # noqa: SIM115 - for as long as the process lives
    _answers = Path(pipes, f"{os.environ['RANK']}.answers").open("w")  # noqa: SIM115
else:
    _orders = sys.stdin
    _answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def _answer(wall_s: float, cpu_s: float) -> None:
    peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    _answers.write(json.dumps([wall_s, cpu_s, peak_rss_bytes]) + "\n")
    _answers.flush()


def _nothing() -> None:
    pass


def take_turns(
    work: Callable[[], None],
    warm_up: int = 1,
    *,
    before: Callable[[], None] = _nothing,
    after: Callable[[], None] = _nothing,
) -> None:
    """Run ``work`` once for each line that is read; answer with its seconds on the clock and of the
    processor.

    ``before`` and ``after`` run around it each time, and do not count.
    """
    for _ in range(warm_up):
        _turn(work, before, after)
    _answer(0.0, 0.0)
    for _ in _orders:
        _answer(*_turn(work, before, after))


def _turn(work: Callable[[], None], before: Callable[[], None], after: Callable[[], None]) -> tuple[float, float]:
    before()
    began, cpu_began = time.perf_counter(), time.process_time()
    work()
    took = time.perf_counter() - began, time.process_time() - cpu_began
    after()
    return took


class Pauses:
    """The same for work that cannot be called in parts: it calls ``pause`` after each."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def pause(self) -> bool:
        """End a turn, or at first the warm-up, and wait for the next. Returns whether there is
        one."""
        now = time.perf_counter(), time.process_time()
        began = now if self._began is None else self._began
        _answer(now[0] - began[0], now[1] - began[1])
        is_told = bool(_orders.readline())
        self._began = time.perf_counter(), time.process_time()
        return is_told
