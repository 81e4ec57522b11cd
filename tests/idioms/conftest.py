"""The scripts run in warm processes, one after another: see ``crew``."""

from crew import crew

__all__ = ["crew"]
