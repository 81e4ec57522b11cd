"""The Slurm job of this process, read from Slurm's environment variables."""
