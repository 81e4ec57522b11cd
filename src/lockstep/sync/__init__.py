"""How gradients meet: one file for each way, one row each in ``table.py``."""
