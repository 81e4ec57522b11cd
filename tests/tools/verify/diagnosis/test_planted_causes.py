"""Each cause that ``lockstep verify`` must name, planted in a real training, found by real
experiments."""

import planted
import pytest

from lockstep._tools.verify.diagnosis.causes import conclude
from lockstep._tools.verify.diagnosis.experiments import investigate
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import first_difference
from lockstep._tools.verify.trace.traced_run import read_run
from lockstep.testing import DifferenceError

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("fault", "cause", "stage"),
    [("clock", "chance", "loss"), ("update by one rank", "rank", "ranks"), ("evaluation", "chance", "evaluation")],
)
def test_a_planted_cause_is_named(check_same, fault, cause, stage):
    with pytest.raises(DifferenceError) as raised:
        check_same((1, 2), planted.train, fault)
    assert (raised.value.stage, raised.value.cause) == (stage, cause)


def test_what_depends_on_loader_workers_is_named(crew, tmp_path):
    numbers = iter(range(100))

    def run(setting, until=None):
        run_dir = tmp_path / f"run-{next(numbers)}"
        crew(1, planted.train, "worker", trace="steps", run_dir=str(run_dir), shards=2, workers=setting.workers)
        return read_run(run_dir)

    pairs = [(setting, run(setting)) for setting in (Setting(number=n + 1, world_size=1, workers=n) for n in (0, 1))]
    difference = first_difference(*(traced for _, traced in pairs))
    assert difference is not None
    diagnosis = conclude(investigate(difference, *pairs, run))
    assert (difference.stage, diagnosis.cause) == ("content", "worker")


def test_what_is_innocent_makes_no_difference(check_same):
    check_same((1, 2), planted.train, "innocent")
