"""These tests run functions in several processes: see ``crew``."""

from crew import crew, server, standing_crew

__all__ = ["crew", "server", "standing_crew"]
