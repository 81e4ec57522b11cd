"""The seed that a script sets after ``join``."""

from __future__ import annotations

import torch

from lockstep._data.streams import derive
from lockstep._loop.phases import Phases
from lockstep._state.recovery.resuming import Restorer
from lockstep._state.recovery.run_state import RunState
from lockstep._world.comm.agreement import compare_ranks
from lockstep._world.comm.collectives import Collectives

_REMEDY = "Pass the same number to torch.manual_seed() on every rank. (Each shard has a separate random stream in any case.)"


class ScriptSeed:
    """The seed of a ``torch.manual_seed`` between ``join`` and ``prepare``, which is mixed into the
    run's.

    Args:
        phases: contains the run's seed.
        restorer: restores the run that resumes; None: the run is new.
    """

    def __init__(self, collectives: Collectives, state: RunState, phases: Phases, restorer: Restorer | None) -> None:
        self._collectives = collectives
        self._state = state
        self._phases = phases
        self._restorer = restorer
        self._before: int | None = torch.initial_seed()

    def take(self) -> None:
        """Mixes the seed in, at the first call. Every rank must call it.

        Raises:
            MismatchError: the ranks set different seeds, or the run has begun with another one.
        """
        if self._before is None:
            return
        seed, before, self._before = torch.initial_seed(), self._before, None
        compare_ranks("random seeds", [f"torch.manual_seed({seed})"], self._collectives, _REMEDY)
        if seed != before:
            self._state.script_seed = seed
            # Shifted, since derived seeds have 64 bits, and a run's seed is less than 2**63.
            self._phases.parts.seed = derive(self._phases.parts.seed, seed) >> 1
        if self._restorer is not None:
            self._restorer.check_seed(self._state.script_seed)
