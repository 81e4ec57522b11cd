"""Scripts run in processes that import nothing anew: see ``launchers``."""

from launchers import nursery, python_here

__all__ = ["nursery", "python_here"]
