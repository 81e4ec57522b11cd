"""These tests run functions in several processes: see ``crew``."""

from crew import check_same, crew

__all__ = ["check_same", "crew"]
