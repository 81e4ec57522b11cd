"""Measures a loader within a run that is discarded, changing its settings while the script trains: first what a step and the
loader cost, then the settings that follow from that. A pass repeats the same data until the measurement is complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from lockstep.data.assignment import ShardAssignment
from lockstep.data.sources import Deal, Source
from lockstep.data.torch_loader import is_torch_loader
from lockstep.journal.measure.split import sentence, shares_of
from lockstep.plan.length import length_of
from lockstep.plan.loading import Loading
from lockstep.tools.tune.costliest import find_costliest
from lockstep.tools.tune.costs import Costs
from lockstep.tools.tune.search import NUM_TRIALS, Search, is_clear, may_gain
from lockstep.tools.tune.session import Session
from lockstep.tools.tune.windows import NoStepsError, Steps, Window, Windows

_WARM_UP_STEPS, _WARM_UP_S = 3, 0.3
_LEAST_FETCHES, _MOST_FETCHES = 4, 64
_FAR, _BRIEFLY = 2.0, 0.3
"""Where settings are this many times as fast as the present ones, this share of a window is enough to compare the two."""
_PATIENCE_S = 60.0
"""By then the command has read the result and ended this process."""


class Probe:
    """Replaces the source of a prepared loader.

    Args:
        source: the loader's own.
        batches: the script's loader.
        number: of the loader.
        assignment: of this process.
        session: of this process.
    """

    def __init__(
        self, source: Source, batches: Iterable[Any], number: int, assignment: ShardAssignment, session: Session
    ) -> None:
        self._source = source
        self._batches = batches
        self._number = number
        self._session = session
        self._windows = Windows(batches, assignment, session)
        self._known: dict[str, Any] = {}
        """Results so far, kept for a script that leaves its loop early and begins another pass."""

    def state(self, step: int | None) -> Any:
        """See Source."""
        return self._source.state(step)

    def load_state(self, state: Any) -> None:
        """See Source."""
        self._source.load_state(state)

    def num_steps(self) -> int:
        """See Source."""
        return self._source.num_steps()

    def describe(self) -> list[str]:
        """See Source."""
        return self._source.describe()

    def __len__(self) -> int:
        return self._source.num_steps()

    def deal(self, first_step: int, epoch: int, skip: int = 0, *, compared: bool = False) -> Iterator[Deal]:
        """See Source."""
        if not self._session.leads(self):
            yield from self._source.deal(first_step, epoch, skip, compared=compared)
            return
        self._windows.begin_pass(first_step, epoch, compared=compared)
        with contextlib.suppress(NoStepsError):  # the loop reports it
            if isinstance(self._batches, DataLoader) and is_torch_loader(self._batches):
                yield from self._measure(self._batches)
            else:
                self._session.leave({"no_loader": type(self._batches).__name__})
            time.sleep(_PATIENCE_S)
            sys.exit(0)

    def _measure(self, batches: DataLoader[Any]) -> Steps[None]:
        session, windows, known = self._session, self._windows, self._known
        if "present" not in known:
            known["present"] = Loading(
                workers=batches.num_workers, prefetch=batches.prefetch_factor or 2, pin=bool(batches.pin_memory)
            )
            known["persists"] = batches.persistent_workers
        present = known["present"]
        num_steps = None if known["persists"] else length_of(self)
        if "costs" not in known:
            session.say("the first steps")
            step_s = yield from windows.warm_up(present, _WARM_UP_STEPS, _WARM_UP_S)
            session.say("the loader as it is", self._left_s(step_s, 7 + 2 * NUM_TRIALS))
            now = yield from windows.time(present, step_s, num_steps)
            known["costs"], known["bound"] = yield from self._measure_costs(now, num_steps)
            known.update(now=now, trials=[])
        costs, now = known["costs"], known["now"]
        if may_gain(costs, present.workers, now.step_s, now.wait_s):
            session.say("what costs most in the loader", self._left_s(now.step_s, 4 + 2 * NUM_TRIALS))
            if session.is_main and "costliest" not in known:
                known["costliest"] = find_costliest(windows.open(Loading(workers=0)).next, batches, costs.fetch_s)
            yield from self._search(present, num_steps)
        self._leave()

    def _measure_costs(self, now: Window, num_steps: int | None) -> Steps[tuple[Costs, str]]:
        session, windows = self._session, self._windows
        left = 4 + 2 * NUM_TRIALS
        session.say("batches fetched in the training process", self._left_s(now.step_s, left + 2))
        fetched = windows.fetch(Loading(workers=0), _LEAST_FETCHES, _MOST_FETCHES)
        session.say("steps on batches that are already loaded", self._left_s(now.step_s, left + 1))
        before = session.split()
        cached = itertools.cycle(fetched.deals)
        count = windows.count(max(now.step_s - now.wait_s, 1e-6))
        step_s, _, step_cpu_s = yield from windows.measure(lambda: next(cached), count)
        spent = {part: seconds - before[part] for part, seconds in session.split().items()}
        session.say("batches fetched in one worker", self._left_s(now.step_s, left))
        worker = windows.fetch(Loading(workers=1), _LEAST_FETCHES, _MOST_FETCHES)
        costs = Costs(
            step_s=session.slowest(step_s),
            step_cpu_s=session.slowest(step_cpu_s),
            copy_s=session.slowest(spent["copy"] / count),
            fetch_s=session.slowest(fetched.each_s),
            fetch_cpu_s=session.slowest(fetched.cpu_s),
            fetch_spread=session.slowest(fetched.spread),
            longest_fetch_s=session.slowest(fetched.longest_s),
            worker_s=session.slowest(worker.each_s),
            receive_s=session.slowest(worker.cpu_s),
            start_s=session.slowest(worker.start_s),
            batch_bytes=int(session.slowest(fetched.batch_bytes)),
            num_steps=num_steps,
            cores=session.cores,
            room_bytes=session.room_bytes(),
            is_stream=isinstance(getattr(self._batches, "dataset", None), IterableDataset),
            on_gpu=session.on_gpu,
        )
        agreed, bound = session.agree((dataclasses.asdict(costs), sentence(shares_of([{**spent, "data": 0.0}]))))
        return Costs(**agreed), bound

    def _search(self, present: Loading, num_steps: int | None) -> Steps[None]:
        """Try settings, each against the present ones, and the best of them again: in both orders, unless it is far faster both
        times."""
        session, windows, now = self._session, self._windows, self._known["now"]
        search, trials = Search(self._known["costs"], present), self._known["trials"]
        for trial in trials:
            search.note(Loading(**trial["loading"]), now.step_s / trial["speedup"])
        while (loading := search.next()) is not None:
            left_s = self._left_s(now.step_s, 4 + 2 * (NUM_TRIALS - len(trials)))
            session.say(f"trial {len(trials) + 1}: {loading}", left_s)
            trial = yield from windows.time(loading, now.step_s, num_steps)
            # If these are far faster, a short window suffices for the present ones.
            share = _BRIEFLY if _FAR * trial.step_s < now.step_s else 1.0
            unchanged = yield from windows.time(present, now.step_s, num_steps, share)
            trials.append(_compared(loading, trial, unchanged))
            # Relative to the window measured next to it, since the machine's speed may have changed.
            search.note(loading, now.step_s / trials[-1]["speedup"])
        if (best := search.best) is None:
            return
        is_far = now.step_s > _FAR * search.tried[best]
        if is_far and len(rivals := search.rivals) == 2:  # both are faster, but it is not clear which one is the fastest
            best = yield from self._faster_of(rivals, num_steps)
        session.say(f"once more: {best}", self._left_s(now.step_s, 4))
        first = next(trial for trial in trials if Loading(**trial["loading"]) == best)
        # One short comparison suffices where they are far faster, unless it says otherwise: something held up that window, or
        # the first one.
        both = ((present, best), (best, present))  # so that drift favours neither
        for share, orders in ((_BRIEFLY, both[:1]), (1.0, both)) if is_far else ((1.0, both),):
            again = []
            for order in orders:
                times = {}
                for loading in order:
                    times[loading] = yield from windows.time(loading, now.step_s, num_steps, share)
                again.append(_compared(best, times[best], times[present]))
            if is_better := is_clear(*(trial["speedup"] for trial in (first, *again))):
                break
        self._known.update(best=first, again=again, is_better=is_better)

    def _faster_of(self, rivals: list[Loading], num_steps: int | None) -> Steps[Loading]:
        """Time two settings in turn, in both orders: the faster one, or the first if there is no clear difference."""
        fewer, more = rivals
        total_s = dict.fromkeys(rivals, 0.0)
        for loading in (fewer, more, more, fewer):
            self._session.say(f"in turn: {fewer}; {more}", self._left_s(self._known["now"].step_s, 5))
            window = yield from self._windows.time(loading, self._known["now"].step_s, num_steps)
            total_s[loading] += window.step_s
        return more if is_clear(total_s[fewer] / total_s[more]) else fewer

    def _left_s(self, step_s: float, num_windows: int) -> float:
        """How long this many windows may take, in seconds."""
        return num_windows * max(self._windows.count(step_s) * step_s, self._session.window_s)

    def _leave(self) -> None:
        known = self._known
        self._session.leave(
            {
                "loader": self._number,
                "present": dataclasses.asdict(known["present"]),
                "now": known["now"]._asdict(),
                "costs": dataclasses.asdict(known["costs"]),
                "bound": known["bound"],
                "costliest": known.get("costliest"),
                "trials": known["trials"],
                "best": known.get("best"),
                "again": known.get("again", []),
                "is_better": known.get("is_better", False),
            }
        )


def _compared(loading: Loading, trial: Window, present: Window) -> dict[str, Any]:
    """A trial, compared with the present settings."""
    return {
        "loading": dataclasses.asdict(loading),
        "step_s": trial.step_s,
        "wait_s": trial.wait_s,
        "present_s": present.step_s,
        "speedup": present.step_s / trial.step_s,
    }
