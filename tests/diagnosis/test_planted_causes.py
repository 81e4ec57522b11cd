"""Each cause that ``lockstep verify`` must name, planted in a real training, found by real experiments."""

import contextlib

import planted
import pytest

from lockstep.base.errors import LaunchError
from lockstep.tools.verify.diagnosis.causes import conclude
from lockstep.tools.verify.diagnosis.experiments import investigate
from lockstep.tools.verify.diagnosis.setting import Setting
from lockstep.tools.verify.trace.differences import first_difference, first_fault
from lockstep.tools.verify.trace.traced_run import read_run

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def laboratory(crew, tmp_path):
    """Runs ``planted.train(fault)`` again, in the warm crew. (The hash seed stays that of the crew.)"""
    numbers = iter(range(100))

    def make(fault):
        def run(setting, until=None):
            run_dir = tmp_path / f"run-{next(numbers)}"
            settings = {"trace": "steps", "run_dir": str(run_dir), "shards": 2, "workers": setting.workers}
            given = {name: value for name, value in settings.items() if value is not None}
            with contextlib.suppress(LaunchError):  # ranks that part are noticed, after the step in which they do
                crew(setting.world_size, planted.train, fault, **given)
            return read_run(run_dir)

        return run

    return make


ONE, TWO = Setting(number=1, world_size=1), Setting(number=2, world_size=2)


def diagnose(run, settings=(ONE, TWO)):
    runs = [run(setting) for setting in settings]
    difference = first_fault(runs[1]) or first_difference(*runs)
    assert difference is not None
    pair = [(settings[1], runs[1])] * 2 if difference.among else list(zip(settings, runs, strict=True))
    return difference, conclude(investigate(difference, *pair, run))


@pytest.mark.parametrize(
    ("fault", "cause", "stage"),
    [
        pytest.param(*("clock", "chance", "loss"), marks=pytest.mark.long),
        ("update by one rank", "rank", "ranks"),
    ],
)
def test_a_planted_cause_is_named(laboratory, fault, cause, stage):
    difference, diagnosis = diagnose(laboratory(fault))
    assert (difference.stage, diagnosis.cause) == (stage, cause)


def test_what_depends_on_loader_workers_is_named(laboratory):
    settings = [Setting(number=number + 1, world_size=1, workers=number) for number in (0, 1)]
    difference, diagnosis = diagnose(laboratory("worker"), settings)
    assert (difference.stage, diagnosis.cause) == ("content", "worker")


def test_what_is_innocent_makes_no_difference(laboratory):
    run = laboratory("innocent")
    one, two = (run(setting) for setting in (ONE, TWO))
    assert first_fault(one) is None
    assert first_fault(two) is None
    assert first_difference(one, two) is None
    assert two.samples_by_rank == (8, 8)
