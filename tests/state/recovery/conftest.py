"""Runs of this folder are disturbed: see ``laboratory``."""

from laboratory import interrupted, known_runs, known_words, lab, undisturbed
from launchers import nursery
from warm import run_here

__all__ = ["interrupted", "known_runs", "known_words", "lab", "nursery", "run_here", "undisturbed"]
