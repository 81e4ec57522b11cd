"""These tests run functions in several processes: see ``crew``."""

from crew import crew, standing_crew
from launchers import nursery

__all__ = ["crew", "nursery", "standing_crew"]
