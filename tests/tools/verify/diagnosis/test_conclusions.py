"""Promises of the diagnosis: what an experiment excludes is not blamed, and what it shows is
named."""

import pytest

from lockstep._tools.verify.diagnosis.causes import conclude
from lockstep._tools.verify.diagnosis.experiments import Findings, investigate
from lockstep._tools.verify.diagnosis.setting import Setting
from lockstep._tools.verify.trace.differences import Difference, first_difference
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


def test_what_could_not_be_run_again_is_not_called_chance():
    among = Difference(step=1, stage="ranks", name="w", among=("rank 0", "rank 1"))
    for difference in (LOSS, among):
        assert cause(difference=difference, repeats=None) == cause(difference=difference, repeats=True)


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


PLACES = {
    "before the first step": (Difference(step=0, stage="weights", name="w"), "initial", 1),
    "in a shard": (Difference(step=2, stage="loss", shard=0), "loss", 2),
    "in the update": (Difference(step=2, stage="weights", name="w"), "weights", 2),
    "in an evaluation": (Difference(step=2, stage="evaluation", name="accuracy"), "evaluation", 3),
    "in the last evaluation": (Difference(step=4, stage="evaluation", name="accuracy"), "last evaluation", 5),
    "behind the last step": (Difference(step=4, is_behind=True, stage="weights", name="w"), "end", None),
}
"""Where runs differ, the value there of ``whole_run``, and how far a run must go to have it: the
script ends when it asks for the step after the last traced one, before it evaluates."""


def whole_run(until=None, **values):
    """Four steps with an evaluation after each, as far as they are traced; the second step and what
    follows the fourth have these values."""

    def value(name, is_here=True):
        return (values.get(name, 1.0) if is_here else 1.0).hex()

    def state(weight):
        return {"weights": {"w": weight}, "buffers": {}, "state": {}}

    lines = [
        {"event": "start", "world_size": 1, "strategy": "exact"},
        {"event": "initial", **state(value("initial"))},
    ]
    for step in range(1, 5):
        at = {"epoch": 0, "pass": 0, "step": step}
        shard = {"batches": [], "losses": [value("loss", step == 2)], "weights": [None], "gradients": {}}
        lines += [
            {"event": "shard", **at, "phase": 0, "part": 0, "shard": 0, **shard},
            {"event": "step", **at, "num_samples": 1, "gradients": [], "norms": [], **state(value("weights", step == 2))},
        ]
        if step == until:
            break
        found = value("last evaluation" if step == 4 else "evaluation", step in (2, 4))
        lines.append({"event": "evaluation", "epoch": 0, "step": step, "values": {"accuracy": found}})
    return gather([[*lines, {"event": "end", "step": step, **state(value("end", step == 4))}]])


@pytest.mark.parametrize("by_chance", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_both_are_run_again_far_enough_to_show_chance_wherever_they_differ(place, by_chance):
    difference, name, last = PLACES[place]
    asked = []

    def again(setting, until):
        asked.append(until)
        return whole_run(until, **{name: 9.0 if by_chance else float(setting.number)})

    first, second = ((setting, whole_run(**{name: float(setting.number)})) for setting in SETTINGS)
    assert first_difference(first[1], second[1]).order[:2] == difference.order[:2]
    assert investigate(difference, first, second, again).repeats is not by_chance
    assert asked == [last] * 2
