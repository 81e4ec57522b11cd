"""Listeners that measure a run's loaders, or give them the settings that were found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from lockstep.data.fetch import set_loading
from lockstep.data.loader import PreparedLoader
from lockstep.joining.instrument import Run
from lockstep.listener import Listener
from lockstep.prepare.guarded_methods import idle_when
from lockstep.tools.tune.probe import Probe
from lockstep.tools.tune.request import TuningRequest
from lockstep.tools.tune.session import Session
from lockstep.tools.tune.tuned import Situation, Tuned


class Measuring(Listener):
    """Has loaders measured while the script trains on them. The first to yield a batch is; others keep their settings.

    Args:
        run: that is measured.
        request: of ``lockstep tune``.
        situation: what the measurement is valid for.
    """

    def __init__(self, run: Run, request: TuningRequest, situation: Situation) -> None:
        self._run = run
        self._session = Session(request, situation, run)

    @override
    def prepared(self, item: Any) -> None:
        """Schedules stand still: more steps are taken than the script has, and some schedules refuse that."""
        if isinstance(item, LRScheduler):
            idle_when(item, "step", lambda: True)

    @override
    def made_loader(self, loader: PreparedLoader, number: int) -> None:
        """Measure it, if it is to be the first."""
        assignment = self._run.assignment(number)
        loader.replace_source(lambda source: Probe(source, loader.wrapped, number, assignment, self._session))


class TunedLoaders(Listener):
    """Gives the loader that was measured its settings.

    Args:
        tuned: which loader, and its settings.
    """

    def __init__(self, tuned: Tuned) -> None:
        self._tuned = tuned
        self._num_loaders = 0

    @override
    def prepared_loader(self, batches: Iterable[Any]) -> None:
        """Change it before it is prepared."""
        self._num_loaders += 1
        set_loading(batches, self._tuned.loading_of(self._num_loaders))
