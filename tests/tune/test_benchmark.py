"""benchmarks/tune.py runs, and its scripts have one digest with and without the file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "tune.py"


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(200)
def test_a_case_is_tuned_swept_and_ends_in_one_json_object(tmp_path):
    command = [sys.executable, str(BENCHMARK), "--quick", "--rounds", "1", "--cases", "uneven"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["benchmark"], result["better"], result["digests_equal"]) == ("tune", "higher", True)
    assert 0 < result["share"] == result["cases"]["uneven"]["share"]
    assert result["of_sweep"] > 0
    assert not any(tmp_path.iterdir())
