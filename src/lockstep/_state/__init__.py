"""The state of a run: checkpoints and their files, the run directory, and resuming."""
