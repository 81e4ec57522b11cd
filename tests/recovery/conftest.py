"""Runs of this folder are disturbed: see ``laboratory``."""

from laboratory import interrupted, known_runs, known_words, lab, undisturbed
from warm import run_here

__all__ = ["interrupted", "known_runs", "known_words", "lab", "run_here", "undisturbed"]
