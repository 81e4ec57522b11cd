"""Some of these tests run functions in several processes: see ``standing_crew``."""

from crew import crew, standing_crew

__all__ = ["crew", "standing_crew"]
