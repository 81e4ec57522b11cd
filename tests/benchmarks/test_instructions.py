"""What lockstep adds to a step does not grow: counted in instructions, which are the same on a busy
machine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INSTRUCTIONS = Path(__file__).parents[2] / "benchmarks" / "instructions.py"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_step_and_a_shard_take_no_more_instructions_than_their_goals(require):
    found = shutil.which("valgrind") and shutil.which("cc")
    require("valgrind", None if found else "callgrind needs Debian's valgrind and a C compiler")
    done = subprocess.run([sys.executable, str(INSTRUCTIONS), "--rounds", "9"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert 0 < result["own_step_k"] <= result["goal_step_k"], done.stdout
    assert 0 < result["own_shard_k"] <= result["goal_shard_k"], done.stdout
    assert result["goal_met"] is True
