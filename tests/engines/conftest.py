"""Fixtures for the tests of this folder."""

from engine_helpers import digest_alone, known, named_nursery, pods
from warm import run_here

__all__ = ["digest_alone", "known", "named_nursery", "pods", "run_here"]
