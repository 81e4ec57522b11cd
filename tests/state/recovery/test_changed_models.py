"""A model that is changed after ``prepare`` is resumed, or the first checkpoint that could not be
says what has changed."""

import changed_scripts as scripts
import pytest
from crew import crew

from lockstep._base.errors import LaunchError

__all__ = ["crew"]

pytestmark = pytest.mark.timeout(90)
SETTINGS = {"run_dir": "run", "checkpoint_every": 4}


def warnings_of(crew, capfd, kind):
    """What is said until the run fails, behind the checkpoint of step 4."""
    with pytest.raises(LaunchError, match="planted"):
        crew(1, scripts.train, kind, True, **SETTINGS)
    return [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]


@pytest.mark.parametrize("kind", scripts.RESUMED)
def test_a_change_that_is_in_the_checkpoint_is_resumed_and_nothing_is_said(crew, capfd, kind):
    assert warnings_of(crew, capfd, kind) == []
    assert crew(1, scripts.train, kind, **SETTINGS) == crew(1, scripts.train, kind, run_dir="whole")


@pytest.mark.parametrize("kind", scripts.NAMED)
def test_a_change_that_no_resumed_run_would_have_is_named_by_the_first_checkpoint_behind_it(crew, capfd, kind):
    [line] = warnings_of(crew, capfd, kind)
    assert "model (Net)" in line
    assert scripts.NAMED[kind][1] in line
    if kind == "tied":
        with pytest.raises(LaunchError, match="MismatchError"):
            crew(1, scripts.train, kind, **SETTINGS)


@pytest.mark.parametrize("kind", scripts.REFUSED)
def test_a_new_parameter_that_would_learn_on_one_process_only_is_refused_in_its_first_step(crew, kind):
    with pytest.raises(LaunchError, match=r"no prepared model|put into model \(Net\)"):
        crew(1, scripts.train, kind)
