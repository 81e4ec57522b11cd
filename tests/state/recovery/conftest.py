"""Runs of this folder are disturbed: see ``laboratory``."""

from crew import crew, standing_crew
from laboratory import interrupted, known_runs, known_words, lab, undisturbed
from launchers import nursery
from warm import run_here

__all__ = ["crew", "interrupted", "known_runs", "known_words", "lab", "nursery", "run_here", "standing_crew", "undisturbed"]
