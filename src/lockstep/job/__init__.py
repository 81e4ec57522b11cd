"""The Slurm job that a process belongs to, as its variables tell it."""
