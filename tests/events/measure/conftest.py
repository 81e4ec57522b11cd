"""These tests run functions in several processes: see ``crew``."""

from crew import crew
from warm import run_here

__all__ = ["crew", "run_here"]
