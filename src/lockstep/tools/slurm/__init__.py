"""``lockstep slurm``: the requested job (``request``), its batch file (``batch``), the resources of the cluster
(``inventory``), and Slurm's commands (``commands``)."""
