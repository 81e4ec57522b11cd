"""Instruments that read runs: they start scripts and read journals, and know nothing of how gradients are reduced."""
