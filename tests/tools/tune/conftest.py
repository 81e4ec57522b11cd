"""Scripts on the warm fork server, and trials that need not import anything: see ``launchers``."""

from launchers import nursery, warm_trials
from warm import run_here

__all__ = ["nursery", "run_here", "warm_trials"]
