"""Preparing models, optimizers, schedules and registered objects: checks, wrappers, and their state
in checkpoints."""
