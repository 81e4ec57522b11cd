"""Checks run in processes that have torch: see ``launchers``."""

from launchers import nursery, python_here

__all__ = ["nursery", "python_here"]
