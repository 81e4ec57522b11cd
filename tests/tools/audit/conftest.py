import sys
from pathlib import Path

from crew import crew, standing_crew  # noqa: F401 - fixtures

sys.path[:0] = [str(Path(__file__).parents[2] / "contract")]  # trainings of every feature
