"""These tests run functions in several processes: see ``crew``."""

from crew import check_same

__all__ = ["check_same"]
