"""Errors and their frames, as they are shown."""
