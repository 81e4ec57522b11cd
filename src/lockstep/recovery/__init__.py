"""Nothing lost: the state of a run taken into checkpoints, and put back where a launch resumes it."""
