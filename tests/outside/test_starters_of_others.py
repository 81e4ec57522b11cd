"""lockstep scripts run unchanged under the starters that others have written, with the same
answer."""

import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TWO = ("--nproc-per-node", "2")


@pytest.fixture
def weights(here):
    """The digests that the ranks left, once each."""

    def take():
        paths = sorted(here.glob("weights-*"))
        assert [path.name for path in paths] == ["weights-0-of-2", "weights-1-of-2"]
        found = {path.read_text() for path in paths}
        for path in paths:
            path.unlink()
        return found

    return take


@pytest.mark.longest
def test_they_have_the_answer_of_lockstep_run(lockstep_run, torchrun, start, weights):
    lockstep_run(*TWO, "with_lockstep.py")
    expected = weights()
    assert len(expected) == 1
    for how in (
        lambda: torchrun("--standalone", *TWO, "with_lockstep.py"),
        lambda: torchrun(*TWO, "--use-env", "with_lockstep.py", module="torch.distributed.launch"),
        lambda: torchrun(*TWO, "with_lockstep.py", module="torch.distributed.launch"),
        lambda: start("starter.py", "with_lockstep.py"),
        lambda: lockstep_run("starter.py", "with_lockstep.py"),
        lambda: lockstep_run("--no-python", *TWO, sys.executable, "with_lockstep.py"),
    ):
        how()
        assert weights() == expected


@pytest.mark.longest
def test_settings_of_the_command_line_reach_processes_that_a_script_starts(lockstep_run, here, weights):
    lockstep_run("--shards", "4", "starter.py", "with_lockstep.py")
    starter = weights()
    lockstep_run("--shards", "4", *TWO, "with_lockstep.py")
    assert starter == weights()
