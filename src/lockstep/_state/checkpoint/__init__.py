"""Checkpoints: their contents, and how they are written, found and verified."""
