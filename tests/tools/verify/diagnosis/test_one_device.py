"""Promises of comparing V shards with one device: a sum is told from a loss over the whole batch,
and chance from both."""

import contextlib

import planted
import pytest

from lockstep._base.errors import LaunchError
from lockstep._tools.verify.diagnosis.one_device import against_one_device
from lockstep._tools.verify.trace.traced_run import gather, read_run

pytestmark = pytest.mark.timeout(60)

GRADIENT = [0.5, -1.0, 2.0, 0.25]


def run(shards, values, losses=(1.0,), draws=False, rows=("a", "b"), samples=(0, 1), precision="32-true"):
    """A run of one process that took one step."""
    each = len(samples) // shards
    lines = [{"event": "start", "world_size": 1, "shards": shards, "precision": precision, "device": "cpu"}]
    for shard in range(shards):
        place = {"epoch": 0, "pass": 0, "step": 1, "phase": 0, "part": 0, "shard": shard}
        batch = {"samples": list(samples[shard * each : (shard + 1) * each]), "content": ""}
        lines.append({"event": "shard", **place, "batches": [batch], "losses": [losses[shard % len(losses)].hex()]})
    lines.append(
        {"event": "gradient", "values": {"w": list(values)} if values else {}, "rows": sorted(rows), "draws": draws}
    )
    lines.append({"event": "step", "step": 1})
    return gather([lines])


def scaled(factor, noise=0.0):
    return [factor * value + noise * (-1) ** place for place, value in enumerate(GRADIENT)]


def test_gradients_that_differ_by_rounding_are_the_same():
    found = against_one_device(run(1, GRADIENT), run(2, scaled(1.0, 1e-6)))
    assert (found.status, found.shards, found.is_bad) == ("same", 2, False)


def test_a_factor_of_v_is_a_sum_also_if_the_shards_are_not_equally_large():
    found = against_one_device(run(1, GRADIENT), run(2, scaled(0.5, 0.02)))
    assert (found.status, found.is_bad) == ("sum", True)
    assert found.factor == pytest.approx(2.0, rel=0.1)


ASIDE = [value / 2 + 0.23 * other for value, other in zip(GRADIENT, (2.0, 1.0, 0.0, 0.0), strict=True)]
"""Half as large, but of another direction."""


@pytest.mark.parametrize("values", [scaled(1.0, 0.01), scaled(0.7), scaled(-1.0), ASIDE])
def test_any_other_difference_is_a_loss_over_the_whole_batch(values):
    found = against_one_device(run(1, GRADIENT), run(2, values))
    assert (found.status, found.is_bad) == ("differs", True)


def test_narrow_formats_round_more():
    gradients = GRADIENT, scaled(1.0, 0.01)
    assert against_one_device(run(1, gradients[0]), run(2, gradients[1], precision="bf16-mixed")).status == "same"


@pytest.mark.parametrize("chance", [{"draws": True}, {"rows": ("a", "c")}])
def test_what_chance_may_have_done_is_not_blamed_on_the_loss(chance):
    found = against_one_device(run(1, GRADIENT), run(2, scaled(0.9, 0.3), **chance))
    assert (found.status, found.is_bad) == ("skipped", False)
    assert found.reason
    noisy_sum = run(2, scaled(0.5, 0.1), losses=(0.5,), **chance)
    assert against_one_device(run(1, GRADIENT), noisy_sum).status == "sum"
    by_norm_alone = run(2, scaled(0.5, 0.1), losses=(1.0,), **chance)  # the loss is not V times smaller
    assert against_one_device(run(1, GRADIENT), by_norm_alone).status == "skipped"
    assert against_one_device(run(1, GRADIENT), run(2, GRADIENT, **chance)).status == "same"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"values": [0.0] * 4}, "is 0, or not finite"),
        ({"values": GRADIENT, "samples": (4, 5)}, "other samples"),
        ({"values": []}, "no gradient"),
    ],
)
def test_what_cannot_be_compared_is_said(other, said):
    found = against_one_device(run(1, [] if not other["values"] else GRADIENT), run(2, **other))
    assert found.status == "skipped"
    assert said in found.reason


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("random data", "same"),  # with dropout, which is left out
        ("sum", "sum"),
        ("whole batch", "differs"),
    ],
)
def test_real_trainings_are_told_apart(crew, tmp_path, fault, status):
    runs = []
    for shards in (1, 2):
        settings = {"trace": "gradient", "trace_until": 1, "shards": shards, "run_dir": str(tmp_path / f"{shards}")}
        with contextlib.suppress(LaunchError):  # the trace ends the function before it returns
            crew(1, planted.train, fault, **settings)
        runs.append(read_run(tmp_path / f"{shards}"))
    found = against_one_device(*runs)
    assert found.status == status, found
