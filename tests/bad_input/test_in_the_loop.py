"""What goes wrong in the loop is named (step, rank, shard, layer), and nobody waits for ever."""

import bad_scripts
import pytest

from lockstep._base.errors import LaunchError

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
QUICK = {"timeout_s": 20.0}


def everyone_told(crew, nproc, script, *args, **settings):
    """The one error that all ranks were told."""
    told = crew(nproc, bad_scripts.told, script, *args, **QUICK, **settings)
    assert None not in told, told
    assert len(set(told)) == 1, told
    return told[0]


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    ("script", "code"),
    [
        (bad_scripts.loss_as_a_number, "loss-not-scalar"),
        (bad_scripts.loss_without_graph, "loss-without-gradient"),
    ],
)
def test_a_loss_that_cannot_be_one_is_refused(standing_crew, nproc, script, code):
    assert everyone_told(standing_crew, nproc, script)[:2] == ("LossError", code)


@pytest.mark.parametrize(("nproc", "rank"), [(1, 0), (2, 1)])
def test_a_nan_loss_stops_the_run_and_names_step_shard_and_rank(crew, nproc, rank):
    with pytest.raises(LaunchError) as caught:
        crew(nproc, bad_scripts.run, bad_scripts.nan_loss, shards=2, **QUICK)
    message = str(caught.value)
    assert message.startswith(f"rank {rank} of {nproc}")
    assert caught.value.code == "loss-nan"
    assert f"step 2, shard 1, on rank {rank}" in message
    assert "on_nan='warn'" in message


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(("policy", "num_warnings"), [("warn", 1), ("ignore", 0)])
def test_a_nan_loss_may_be_passed_over(standing_crew, nproc, policy, num_warnings):
    by_rank = standing_crew(nproc, bad_scripts.nan_loss_and_on, shards=2, on_nan=policy, **QUICK)
    assert [step for step, _ in by_rank] == [4] * nproc
    warned = [message for _, messages in by_rank for message in messages]
    assert len(warned) == num_warnings
    assert all("step 2, shard 1" in message for message in warned)


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_count_is_refused(standing_crew, nproc, weight):
    kind, _, message = everyone_told(standing_crew, nproc, bad_scripts.weighted, [weight])
    assert (kind, f"weight={weight}" in message) == ("ConfigError", True)


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (1, 2), (2, 2), (2, 4)])
def test_weights_that_sum_to_zero_are_an_error_on_every_rank(standing_crew, nproc, shards):
    kind, code, message = everyone_told(standing_crew, nproc, bad_scripts.weighted, [1.0, 0.0, 1.0], shards=shards)
    assert (kind, code) == ("LossError", "zero-weights")
    assert message.startswith("step 2: ")


@pytest.mark.parametrize(("length", "batch_size", "nproc", "shards"), [(9, 4, 1, 1), (2, 2, 1, 2), (2, 2, 2, 2)])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_batchnorm_that_meets_one_sample_is_named_with_the_remedy(
    standing_crew, length, batch_size, nproc, shards, precision
):
    settings = {"shards": shards, "precision": precision}
    told = everyone_told(standing_crew, nproc, bad_scripts.sample_alone_in_a_shard, length, batch_size, **settings)
    assert told[:2] == ("ModelError", "shard-of-one-sample")
    message = told[2]
    assert "'1.0' (BatchNorm1d)" in message
    assert "drop_last=True" in message


@pytest.mark.parametrize("on_rank", [None, 1])
def test_parameters_that_are_no_longer_used_are_named_and_nobody_waits(crew, on_rank):
    with pytest.raises(LaunchError) as caught:
        crew(2, bad_scripts.run, bad_scripts.unused_after_the_first_step, on_rank, strategy="ddp", **QUICK)
    message = str(caught.value)
    assert "ModelError" in message
    assert "second.weight, second.bias" in message
    assert "step 2" in message
    assert "find_unused_parameters=True" in message


@pytest.mark.parametrize("on_rank", [None, 1])
def test_parameters_that_are_no_longer_used_are_welcome_if_said_so(standing_crew, on_rank):
    settings = {"find_unused_parameters": True, "strategy": "ddp", **QUICK}
    assert standing_crew(2, bad_scripts.told, bad_scripts.unused_after_the_first_step, on_rank, **settings) == [None, None]


@pytest.mark.parametrize("on_rank", [None, 1])
def test_parameters_of_small_models_may_be_unused_at_any_time(standing_crew, on_rank):
    assert standing_crew(2, bad_scripts.told, bad_scripts.unused_after_the_first_step, on_rank, **QUICK) == [None, None]


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_collective_in_the_body_meets_all_ranks_with_samples_or_without(standing_crew, nproc):
    assert standing_crew(nproc, bad_scripts.told, bad_scripts.collective_in_every_step, shards=2, **QUICK) == [None] * nproc
