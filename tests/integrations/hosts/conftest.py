"""Fixtures for libraries that drive training with a separate loop, on top of the engine."""

from crew import crew, standing_crew
from warm import run_here

__all__ = ["crew", "run_here", "standing_crew"]
