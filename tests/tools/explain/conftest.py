"""These tests run functions in several processes: see ``crew``."""

from crew import crew
from launchers import nursery, start_launcher
from warm import run_here

__all__ = ["crew", "nursery", "run_here", "start_launcher"]
