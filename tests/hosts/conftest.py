"""Libraries that drive training by a loop of their own, on top of the engine."""

from crew import crew, standing_crew
from warm import run_here

__all__ = ["crew", "run_here", "standing_crew"]
