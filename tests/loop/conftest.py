"""Some of these tests run functions in several processes: see ``crew``."""

from crew import crew, standing_crew

__all__ = ["crew", "standing_crew"]
