"""These tests run functions in several processes: see ``crew``."""

from crew import crew

__all__ = ["crew"]
