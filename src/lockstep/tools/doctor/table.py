"""The checks of one machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from lockstep.tools.doctor import cores, ports, room, software
from lockstep.tools.doctor.finding import Check, Finding, Situation, warn

CHECKS = (
    Check("versions", software.look_at_versions, software.judge_versions),
    Check("GPUs", software.look_at_gpus, software.judge_gpus),
    Check("ports", ports.look_at_ports, ports.judge_ports),
    Check("shared memory", room.look_at_shared_memory, room.judge_shared_memory),
    Check("threads", cores.look_at_threads, cores.judge_threads),
    Check("disk", room.look_at_disk, room.judge_disk),
)


def examine(
    situation: Situation,
    limit_s: float,
    waiting: Callable[[str], None] = lambda name: None,
    checks: Sequence[Check] = CHECKS,
) -> list[Finding]:
    """Run the checks of this machine in parallel. One that hangs (on a dead file server, say) is abandoned.

    Args:
        situation: the run that is to be started.
        limit_s: the time limit for all of them together, in seconds.
        waiting: called with the name of each check before waiting for it.
        checks: in the order of the results.
    """
    deadline = time.monotonic() + limit_s
    answers: dict[str, Finding] = {}

    def ask(check: Check) -> None:
        answers[check.name] = check.examine(situation)

    threads = [threading.Thread(target=ask, args=(check,), daemon=True, name=check.name) for check in checks]
    for thread in threads:
        thread.start()
    for check, thread in zip(checks, threads, strict=True):
        waiting(check.name)
        thread.join(max(0.0, deadline - time.monotonic()))
    late = warn(
        f"no answer within {limit_s:g} s", "a file server or a driver may hang: see dmesg, and try df and nvidia-smi"
    )
    return [answers.get(check.name) or check.signed(late, {}) for check in checks]
