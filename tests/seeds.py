"""The seeds of tests that draw at random: ``make test-all REPEATS=5`` gives them five times as
many."""

import os

REPEATS = int(os.environ.get("LOCKSTEP_REPEATS") or 1)


def seeds(first: int, number: int = 1) -> range:
    """So many from ``first`` on, times the repeats that were asked for."""
    return range(first, first + number * REPEATS)
