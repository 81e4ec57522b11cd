"""A part of `make scale`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.longest
@pytest.mark.timeout(300)
def test_sixteen_processes_give_the_answer_of_one():
    script = Path(__file__).with_name("scale.py")
    done = subprocess.run([sys.executable, script, "--worlds", "1,16", "--epochs", "1"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    digests = {line.split()[-1] for line in done.stdout.splitlines() if "SHA-256" in line}
    assert len(digests) == 1
