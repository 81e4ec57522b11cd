"""Submits with_lockstep.py to submitit's local executor, as two tasks."""

import runpy
import sys

import submitit


def task(script):
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    executor = submitit.LocalExecutor(folder="logs")
    executor.update_parameters(tasks_per_node=2, timeout_min=2)
    executor.submit(task, sys.argv[1]).results()
