"""The checks of one machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep._tools.doctor import cores, driver, room
from lockstep._tools.doctor.finding import Check, Finding, Situation

CHECKS = (
    Check("GPUs", driver.look_at_gpus, driver.judge_gpus),
    Check("shared memory", room.look_at_shared_memory, room.judge_shared_memory),
    Check("threads", cores.look_at_threads, cores.judge_threads),
)


def examine(
    situation: Situation, waiting: Callable[[str], None] = lambda name: None, checks: Sequence[Check] = CHECKS
) -> list[Finding]:
    """Run the checks of this machine.

    Args:
        situation: the planned run.
        waiting: called with the name of each check before it.
        checks: in the order of the results.
    """
    findings = []
    for check in checks:
        waiting(check.name)
        findings.append(check.examine(situation))
    return findings
