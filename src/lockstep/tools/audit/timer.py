"""Times the micro-steps that an audit recomputes."""

from __future__ import annotations

from typing_extensions import override

from lockstep.journal.measure.step_clock import ENDING, IN_AUDIT, LOGGING, WAITING, StepClock
from lockstep.listener import Listener
from lockstep.plan.shards import MicroStep


class AuditTimer(Listener):
    """Times the micro-steps that an audit recomputes, as logging. What precedes them in the phase, waiting for their samples
    from the owner, counts as waiting. Neither is reported to other ranks as being busy."""

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock

    @override
    def begin_shard(self, micro: MicroStep) -> None:
        self._clock.charge(WAITING, then=IN_AUDIT)

    @override
    def end_shard(self) -> None:
        self._clock.charge(LOGGING, then=ENDING)
