"""These tests run functions in several processes: see ``crew``. A process opens its context on the GPU once for all that it is
asked for, if it stays: seconds for each of a hundred trainings."""

from crew import crew, standing_crew

__all__ = ["crew", "standing_crew"]
