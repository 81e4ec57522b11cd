"""What the command says and returns of a launch without failures that did not end by itself."""

import itertools
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1

import pytest

from lockstep._base.stopping import INTERRUPTED_STATUS, REQUEUE_STATUS, UNSAVED_END_STATUS, UNSAVED_STATUS
from lockstep._launch.observer import JoinedRun
from lockstep._launch.script import interruption
from lockstep._launch.spec import LaunchSpec, Script
from lockstep._launch.supervise import LaunchResult

pytestmark = pytest.mark.timeout(20)
SIGNALS = SIGINT, SIGHUP, SIGTERM, SIGUSR1
SAVED = "Checkpoint saved"


def told(**fields):
    spec = LaunchSpec(program=Script(target="script.py"), nproc=1, private_dir="/nowhere", environ={})
    found = interruption(LaunchResult(**{"failures": (), "stopped_by": None, "spec": spec, **fields}))
    return (0, "") if found is None else (found.status, found.message)


def test_a_run_that_ended_by_itself_is_a_success_unless_its_end_is_not_saved():
    assert told() == (0, "")
    status, said = told(is_unsaved=True)
    assert status == UNSAVED_END_STATUS
    assert str(UNSAVED_END_STATUS) in said


@pytest.mark.parametrize("by", [None, *SIGNALS])
def test_a_run_that_was_asked_to_stop_has_the_status_that_says_whether_it_is_saved(by):
    for status in (REQUEUE_STATUS, INTERRUPTED_STATUS, UNSAVED_STATUS):
        found, said = told(stopped_by=by, stopped_with=status)
        assert (found, SAVED in said) == (status, status != UNSAVED_STATUS)


@pytest.mark.parametrize("by", SIGNALS)
def test_a_launch_that_a_signal_ended_has_its_status_and_says_what_is_left_of_a_run_that_was_to_be_saved(by):
    for was_cut_short, newest in itertools.product((False, True), (None, 7)):
        joined = JoinedRun(newest=newest)
        status, said = told(stopped_by=by, was_cut_short=was_cut_short, joined=joined)
        assert (status, joined.as_words() in said, SAVED in said) == (128 + by, was_cut_short, False)
    assert told(stopped_by=by, was_cut_short=True)[0] == 128 + by
