"""Options for tools in other packages: fields of a dataclass that are settings of a run.

An entry point of the group ``lockstep.options`` names such a dataclass. Each of its fields is then
an option of ``lockstep run`` and an argument of ``lockstep.join()``. docs/internals/extending.md
has a whole package.
"""

from lockstep._base.option import CHECKPOINTS, MACHINES, OUTPUT, PROCESSES, TORCHRUN, TRAINING, check_options, option

__all__ = ["CHECKPOINTS", "MACHINES", "OUTPUT", "PROCESSES", "TORCHRUN", "TRAINING", "check_options", "option"]
