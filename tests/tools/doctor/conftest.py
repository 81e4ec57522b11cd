"""``examined``: one check, in a process for which a fault was planted; and warm trials: see
``launchers``."""

import json
import os
import subprocess
import sys

import pytest
from crew import crew
from launchers import nursery, warm_trials

__all__ = ["crew", "nursery", "warm_trials"]

PROGRAM = """
import dataclasses, json, sys
from lockstep._base.config import RunConfig
from lockstep._tools.doctor.finding import Situation
from lockstep._tools.doctor.processes import CHECK
from lockstep._tools.doctor.table import CHECKS, examine
if __name__ == "__main__":
    name, settings = sys.argv[1], json.loads(sys.argv[2])
    check, = [check for check in (*CHECKS, CHECK) if check.name == name]
    found, = examine(Situation(num_processes=2, config=RunConfig(**settings)), checks=[check])
    print(json.dumps(dataclasses.asdict(found)))
"""


@pytest.fixture
def examined(tmp_path):
    """``examined(check, prefix=(), env=None, **settings)``: the finding, of a command that begins
    with ``prefix``."""

    def examine(check, prefix=(), env=None, **settings):
        (tmp_path / "examine.py").write_text(PROGRAM)
        command = [*prefix, sys.executable, str(tmp_path / "examine.py"), check, json.dumps(settings)]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return examine
