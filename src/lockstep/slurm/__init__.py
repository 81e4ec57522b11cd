"""``lockstep slurm``: what a job asks for (``request``), the file that says it (``batch``), what the cluster has
(``inventory``), and Slurm's own commands (``commands``, which alone does anything)."""
