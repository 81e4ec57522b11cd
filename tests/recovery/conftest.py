"""Runs of this folder are disturbed: see ``laboratory``."""

from laboratory import interrupted, known_runs, known_words, lab, undisturbed, warm_server

__all__ = ["interrupted", "known_runs", "known_words", "lab", "undisturbed", "warm_server"]
