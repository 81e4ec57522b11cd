"""Scripts run in processes that import nothing anew: see ``launchers`` and ``warm``."""

from launchers import nursery, python_here
from warm import run_here

__all__ = ["nursery", "python_here", "run_here"]
