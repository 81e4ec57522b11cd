"""Base classes for packages that watch launches and processes, and explain their failures.

An entry point of the group ``lockstep.observers`` names an ``Observer``, and one of the group
``lockstep.process_observers`` a ``ProcessObserver``. lockstep creates one instance of each for a
launch or a process. docs/report-fields.md has an example.
"""

from lockstep._base.process_observer import ProcessObserver
from lockstep._launch.failures import Failure
from lockstep._launch.observer import JoinedRun, Launch, Observer

__all__ = ["Failure", "JoinedRun", "Launch", "Observer", "ProcessObserver"]
