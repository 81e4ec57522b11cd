"""Joining a run: determining which run it is, and opening it."""
