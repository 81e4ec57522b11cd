"""Checks and messages at the start of a run: consistency of machines, allotted resources, and the
run's first line."""
