"""Promises of the diagnosis: what an experiment excludes is not blamed, and what it shows is
named."""

import pytest

from lockstep._tools.verify.diagnosis.causes import conclude
from lockstep._tools.verify.diagnosis.experiments import Findings, investigate
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import Difference
from lockstep._tools.verify.trace.traced_run import gather

pytestmark = pytest.mark.timeout(20)

SETTINGS = (Setting(number=1, world_size=1), Setting(number=2, world_size=2))
LOSS = Difference(step=1, stage="loss", shard=0, values=("1.0", "2.0"))


def cause(settings=SETTINGS, **known):
    return conclude(Findings(**{"difference": LOSS, "settings": settings, "strategy": "exact", **known})).cause


def test_data_that_differs_with_the_number_of_workers_alone_depends_on_them():
    settings = tuple(Setting(number=number + 1, world_size=1, workers=number) for number in (0, 1))
    assert cause(settings, difference=Difference(step=1, stage="content"), repeats=True) == "worker"
    assert cause(settings, difference=Difference(step=1, stage="weights"), repeats=True) == "unknown"


def test_ranks_of_one_run_that_differ_run_code_that_depends_on_the_rank_unless_chance_explains_it():
    among = Difference(step=1, stage="ranks", name="w", among=("rank 0", "rank 1"))
    assert cause(difference=among, repeats=True) == "rank"
    assert cause(difference=among, repeats=False) == "chance"


def test_sums_that_differ_from_equal_gradients_are_rounding_unless_they_are_exact():
    gradient = Difference(step=1, stage="gradient", name="w")
    assert cause(difference=gradient, repeats=True, strategy="ddp") == "rounding"
    for strategy in ("exact", "fsdp"):
        assert cause(difference=gradient, repeats=True, strategy=strategy) == "unknown"


def run_with(loss):
    shard = {"epoch": 0, "pass": 0, "step": 1, "phase": 0, "part": 0, "shard": 0}
    shard |= {"batches": [], "losses": [loss.hex()], "weights": [None], "gradients": {}}
    state = {"weights": {"w": loss.hex()}, "buffers": {}, "state": {}}
    step = {"epoch": 0, "pass": 0, "step": 1, "num_samples": 1, "gradients": [], "norms": []}
    start = {"event": "start", "world_size": 1, "strategy": "exact"}
    return gather([[start, {"event": "shard", **shard}, {"event": "step", **step, **state}, {"event": "end", "step": 1}]])


@pytest.mark.parametrize(
    ("losses", "repeats"), [((1.0, 2.0), True), ((1.0, 9.0), False), ((1.0, None), True), ((None, None), None)]
)
def test_both_are_run_again_up_to_the_step_that_differs_and_what_fails_leaves_less_known(losses, repeats):
    asked = []

    def again(setting, until):
        asked.append((setting, until))
        loss = losses[setting.number - 1]
        return None if loss is None else run_with(loss)

    first, second = ((setting, run_with(loss)) for setting, loss in zip(SETTINGS, (1.0, 2.0), strict=True))
    assert investigate(LOSS, first, second, again).repeats is repeats
    assert asked == [(setting, 1) for setting in SETTINGS]
