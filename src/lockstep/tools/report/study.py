"""What the reports on comparisons and verifications share. Pure."""

from __future__ import annotations

import shlex

from lockstep.tools.trials.study import Study
from lockstep.world.machine.sizes import counted, size


def machine_facts(study: Study) -> list[tuple[str, str]]:
    """What was run, and on which machine."""
    task, machine = study.task, study.machine
    facts = {
        "script": shlex.join([*(["-m"] if task.is_module else []), str(task.script), *task.args]),
        "shards": str(study.shards),
        "threads a process": None if study.threads is None else str(study.threads),
        "seed": None if task.seed is None else str(task.seed),
        "date": machine.date,
        "host": machine.host,
        "system": machine.system,
        "processor": f"{machine.cpu_name}, {counted(machine.num_cores, 'core')}",
        "memory": size(machine.memory_bytes),
        "GPUs": str(machine.num_gpus),
        "load before": f"{machine.load:.1f}",
        "python": machine.python,
        "torch": machine.torch,
        "lockstep": machine.lockstep,
    }
    return [(name, value) for name, value in facts.items() if value is not None]


def completeness(num_missing: int, noun: str, is_interrupted: bool) -> str:
    """The state of a study."""
    if is_interrupted:
        return "interrupted"
    return f"{counted(num_missing, noun)} without figures" if num_missing else "complete"
