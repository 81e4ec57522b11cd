"""These tests run functions in several processes: see ``crew``."""

from crew import crew, standing_crew
from launchers import nursery, python_here, start_launcher
from warm import run_here

__all__ = ["crew", "nursery", "python_here", "run_here", "standing_crew", "start_launcher"]
