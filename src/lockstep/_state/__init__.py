"""What a run holds: its state, its checkpoints and their files, and how it resumes."""
