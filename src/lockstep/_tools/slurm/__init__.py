"""``lockstep slurm``: the requested job (``request``), its batch file (``batch``), and Slurm's
commands (``commands``)."""
