"""Commands of this folder that train start warm launchers where they can: see ``launchers`` and ``warm``."""

from launchers import nursery, warm_trials
from warm import run_here

__all__ = ["nursery", "run_here", "warm_trials"]
