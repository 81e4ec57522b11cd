"""Saving the state of a run in checkpoints, and restoring it when a launch resumes the run."""
