"""Others' tests are compared by how they end, what they wrote, and which of them pass."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def peers_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import peers_tests

    return peers_tests


def test_scripts_are_the_same_if_both_pass_and_wrote_the_same(peers_tests):
    good, other, bad = (peers_tests.End(*values) for values in ((0, "", b"1"), (0, "", b"2"), (1, "ValueError: no\n", b"1")))
    stuck = peers_tests.End(None)
    verdicts = [peers_tests.judge(good, end)[0] for end in (good, other, bad, stuck)]
    assert verdicts == ["same", "different", "different", "different"]
    assert peers_tests.judge(bad, stuck) == ("cannot", "ValueError: no")


def test_where_some_tests_fail_under_both_launchers_the_same_must_pass(peers_tests):
    printed = "a.py::one PASSED [50%]\na.py::two {} [100%]\nE ValueError: no\n"
    ends = [peers_tests.End(1, printed.format(word)) for word in ("PASSED", "FAILED")]
    assert peers_tests.judge(ends[0], ends[0])[0] == "same"
    assert peers_tests.judge(ends[0], ends[1])[0] == "different"


def test_a_name_that_is_no_script_is_an_error(peers_tests):
    with pytest.raises(SystemExit, match="test_opps"):
        peers_tests.chosen("accelerate,test_opps", is_quick=False)


@pytest.mark.long
@pytest.mark.longest
@pytest.mark.timeout(330)
def test_a_script_of_accelerate_ends_alike_under_both_launchers():
    command = [sys.executable, str(BENCHMARKS / "peers_tests.py"), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdicts"] == {"accelerate test_cli": "same"}
