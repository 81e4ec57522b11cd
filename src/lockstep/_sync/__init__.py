"""Synchronizing gradients: one module per strategy, one row each in ``config.STRATEGIES``."""
