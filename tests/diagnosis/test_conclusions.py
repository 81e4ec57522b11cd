"""Promises of the diagnosis: what an experiment excludes is not blamed, and what it shows is named."""

import pytest

from lockstep.tools.verify.diagnosis.causes import conclude
from lockstep.tools.verify.diagnosis.experiments import Experiment, Findings, investigate
from lockstep.tools.verify.diagnosis.setting import Setting
from lockstep.tools.verify.trace.differences import Difference
from lockstep.tools.verify.trace.origin import Origin
from lockstep.tools.verify.trace.traced_run import gather

pytestmark = pytest.mark.timeout(20)

SETTINGS = (Setting(number=1, world_size=1), Setting(number=2, world_size=2))
LOSS = Difference(step=1, stage="loss", shard=0, values=("1.0", "2.0"))


def cause(settings=SETTINGS, **known):
    return conclude(Findings(**{"difference": LOSS, "settings": settings, "strategy": "exact", **known})).cause


DATA = Origin(where="data")


def test_data_that_only_other_ranks_read_differently_is_read_by_rank():
    assert cause(origin=DATA, data_by_rank=True, repeats=True) == "data by rank"
    assert cause(origin=DATA, repeats=True) == "unknown"


def test_data_that_differs_with_the_number_of_workers_alone_depends_on_them():
    settings = tuple(Setting(number=number + 1, world_size=1, workers=number) for number in (0, 1))
    assert cause(settings, origin=DATA, repeats=True) == "worker"
    assert cause(settings, origin=Origin(where="update"), repeats=True) == "unknown"


def test_ranks_of_one_run_that_differ_run_code_that_depends_on_the_rank_unless_chance_explains_it():
    among = Difference(step=1, stage="ranks", name="w", among=("rank 0", "rank 1"))
    assert cause(difference=among, repeats=True) == "rank"
    assert cause(difference=among, repeats=False) == "timing"


@pytest.mark.parametrize(("where", "word"), [("layer", "collective"), ("data", "index"), ("update", "batch[")])
def test_where_nothing_was_found_it_is_said_what_usually_makes_a_difference_there(where, word):
    found = conclude(
        Findings(difference=LOSS, settings=SETTINGS, strategy="exact", repeats=True, origin=Origin(where=where, layer="1"))
    )
    assert found.cause == "unknown"
    assert word in found.sentence + found.remedy


def test_another_number_of_threads_explains_numbers_but_not_samples():
    assert cause(threads=(1, 2), repeats=False) == "threads"
    samples = Difference(step=1, stage="samples", shard=0)
    assert cause(threads=(1, 2), difference=samples, origin=Origin(where="samples")) == "unknown"


def test_sums_that_differ_from_equal_gradients_are_rounding_unless_they_are_exact():
    gradient = Difference(step=1, stage="gradient", name="w")
    exchange = Origin(where="exchange")
    assert cause(difference=gradient, origin=exchange, repeats=True, strategy="ddp") == "rounding"
    for strategy in ("exact", "fsdp"):
        assert cause(difference=gradient, origin=exchange, repeats=True, strategy=strategy) == "unknown"


def test_where_nothing_was_found_it_is_said_what_was_ruled_out():
    found = conclude(Findings(difference=LOSS, settings=SETTINGS, strategy="exact", repeats=True, vanished=False))
    assert found.cause == "unknown"
    assert any("agrees with itself" in text for text in found.ruled_out)
    assert any("threads" in text for text in found.ruled_out)


def run_with(loss, strategy="exact"):
    shard = {"epoch": 0, "pass": 0, "step": 1, "phase": 0, "part": 0, "shard": 0, "threads": 1}
    shard |= {"batches": [], "losses": [loss.hex()], "weights": [None], "gradients": {}}
    state = {"weights": {"w": loss.hex()}, "buffers": {}, "state": {}}
    step = {"epoch": 0, "pass": 0, "step": 1, "num_samples": 1, "gradients": [], "norms": []}
    return gather(
        [
            [
                {"event": "start", "world_size": 1, "strategy": strategy},
                {"event": "shard", **shard},
                {"event": "step", **step, **state},
                {"event": "end", "step": 1},
            ]
        ]
    )


def investigated(laboratory):
    """The findings of two runs whose losses are 1 and 2, and the experiments that were run."""
    done: list[Experiment] = []

    def run(experiment):
        done.append(experiment)
        loss = laboratory(experiment)
        return None if loss is None else run_with(loss)

    first, second = ((setting, run_with(loss)) for setting, loss in zip(SETTINGS, (1.0, 2.0), strict=True))
    return investigate(LOSS, first, second, run), done


def test_the_order_of_a_set_is_found_by_other_hash_seeds():
    findings, done = investigated(
        lambda experiment: 9.0 if experiment.hash_seed is None else float(experiment.hash_seed // 2)
    )
    assert (findings.repeats, findings.vanished, findings.depends_on_hashes) == (False, True, True)
    assert [experiment.hash_seed for experiment in done] == [None, 0, 0, 1, 2]  # 0 and 1 happen to give the same order
    assert conclude(findings).cause == "set order"


def test_every_experiment_ends_at_the_step_that_differs():
    findings, done = investigated(lambda experiment: float(experiment.setting.number))
    assert (findings.repeats, findings.vanished) == (True, False)
    assert {experiment.until for experiment in done} == {1}


def test_experiments_that_fail_leave_less_known():
    findings, _ = investigated(lambda experiment: None)
    assert (findings.repeats, findings.vanished, findings.depends_on_hashes) == (None, None, None)
    assert conclude(findings).cause == "unknown"
