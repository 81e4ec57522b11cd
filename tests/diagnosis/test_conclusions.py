"""Promises of the diagnosis: what an experiment excludes is not blamed, and what was seen elsewhere is innocent."""

import pytest

from lockstep.tools.verify.diagnosis.conclusion import conclude
from lockstep.tools.verify.diagnosis.experiments import Experiment, Findings, Outcome, investigate
from lockstep.tools.verify.diagnosis.setting import Setting
from lockstep.tools.verify.trace.differences import Difference
from lockstep.tools.verify.trace.origin import Origin
from lockstep.tools.verify.trace.traced_run import gather

pytestmark = pytest.mark.timeout(20)

SETTINGS = (Setting(number=1, world_size=1), Setting(number=2, world_size=2))
LOSS = Difference(step=1, stage="loss", shard=0, values=("1.0", "2.0"))


def seen(kind, scope="shard", layer=None, line=1, step=1):
    return {"kind": kind, "what": kind, "file": "train.py", "line": line, "scope": scope, "layer": layer, "step": step}


def cause(*evidence, **known):
    findings = {"difference": LOSS, "settings": SETTINGS, "strategy": "exact", **known}
    return conclude(Findings(evidence=evidence, **findings)).cause


IN_LAYER = Origin(where="layer", layer="1", kind="Linear")


@pytest.mark.parametrize(
    ("repeats", "named"), [(True, "rank"), (False, "clock"), (None, "clock")], ids=["repeats", "does not", "not known"]
)
def test_a_clock_is_no_cause_of_what_repeats_and_a_rank_none_of_what_does_not(repeats, named):
    assert cause(seen("clock"), seen("rank"), repeats=repeats) == named


def test_what_was_seen_in_the_layer_is_blamed_before_what_was_seen_elsewhere():
    assert cause(seen("clock"), seen("clock", layer="1"), repeats=False, origin=IN_LAYER) == "clock"
    assert cause(seen("clock"), repeats=False, origin=IN_LAYER) == "timing"
    assert cause(seen("state", layer="0"), seen("rank", layer="1"), repeats=True, origin=IN_LAYER) == "rank"


def test_what_happens_in_a_shard_does_not_change_what_was_fetched():
    data = Origin(where="data")
    assert cause(seen("generator"), seen("state", scope="data"), origin=data, repeats=True) == "state"
    assert cause(seen("clock"), origin=data) == "unknown"


def test_data_that_differs_is_read_by_rank_if_a_rank_was_read_or_only_the_others_differ():
    for scope in ("data", "outside"):
        assert cause(seen("rank", scope=scope), origin=Origin(where="data"), repeats=True) == "data by rank"
    assert cause(seen("generator", scope="data"), origin=Origin(where="data"), data_by_rank=True) == "data by rank"
    assert cause(origin=Origin(where="data"), repeats=True) == "unknown"


def test_an_update_that_differs_is_made_after_the_shards_or_left_by_one_of_them():
    update = {"origin": Origin(where="update"), "repeats": True}
    assert cause(seen("rank", scope="outside"), **update) == "rank"
    assert cause(seen("weights"), seen("rank", scope="outside"), **update) == "weights"
    assert cause(seen("generator"), seen("rank", scope="outside"), **update) == "rank"
    assert cause(seen("rank", scope="data"), **update) == "unknown"


def test_what_was_seen_after_the_first_step_did_not_change_the_beginning():
    beginning = {"origin": Origin(where="beginning"), "repeats": True}
    assert cause(seen("rank", scope="outside", step=1), **beginning) == "unknown"
    assert cause(seen("rank", scope="outside", step=0), **beginning) == "rank"


def test_fsdp_changes_weights_itself_when_it_gathers_them():
    assert cause(seen("weights"), repeats=True) == "weights"
    assert cause(seen("weights"), repeats=True, strategy="fsdp") == "unknown"


def test_another_number_of_threads_explains_numbers_but_not_samples():
    assert cause(seen("clock"), threads=(1, 2)) == "threads"
    samples = Difference(step=1, stage="samples", shard=0)
    assert cause(threads=(1, 2), difference=samples, origin=Origin(where="samples")) == "unknown"


def test_sums_that_differ_from_equal_gradients_are_rounding_unless_they_are_exact():
    gradient = Difference(step=1, stage="gradient", name="w")
    exchange = Origin(where="exchange")
    assert cause(difference=gradient, origin=exchange, repeats=True, strategy="ddp") == "rounding"
    for strategy in ("exact", "fsdp"):
        assert cause(difference=gradient, origin=exchange, repeats=True, strategy=strategy) == "unknown"


def test_where_nothing_was_found_it_is_said_what_was_ruled_out():
    found = conclude(Findings(difference=LOSS, settings=SETTINGS, strategy="exact", repeats=True, evidence=[seen("file")]))
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
        return None if loss is None else Outcome(run=run_with(loss), evidence=[])

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
    assert (findings.repeats, findings.vanished, findings.depends_on_hashes) == (None, False, None)
    assert conclude(findings).cause == "unknown"
