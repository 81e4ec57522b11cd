"""Checkpoints: what is in one, how it is written, found again and checked."""
