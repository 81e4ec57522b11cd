"""What goes wrong in the loop is named (step, rank, shard, layer), and nobody waits for ever."""

import re

import bad_scripts
import pytest

from lockstep.errors import LaunchError

pytestmark = pytest.mark.timeout(60)
QUICK = {"timeout_s": 20.0}


def everyone_told(crew, nproc, script, *args, **settings):
    """The one error that all ranks were told."""
    told = crew(nproc, bad_scripts.told, script, *args, **QUICK, **settings)
    assert None not in told, told
    assert len(set(told)) == 1, told
    return told[0]


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (bad_scripts.loss_of_each_sample, r"must be a scalar tensor, and is \(\d, 1\): average it"),
        (bad_scripts.loss_as_a_number, "must be a scalar tensor, and is float"),
        (bad_scripts.loss_without_graph, "does not depend on any parameter that learns.* detached"),
    ],
)
def test_a_loss_that_cannot_be_one_is_refused(crew, nproc, script, words):
    kind, message = everyone_told(crew, nproc, script)
    assert kind == "LossError"
    assert re.search(words, message), message


@pytest.mark.parametrize(("nproc", "rank"), [(1, 0), (2, 1)])
def test_a_nan_loss_stops_the_run_and_names_step_shard_and_rank(crew, nproc, rank):
    with pytest.raises(LaunchError) as caught:
        crew(nproc, bad_scripts.run, bad_scripts.nan_loss, shards=2, **QUICK)
    message = str(caught.value)
    assert message.startswith(f"rank {rank} of {nproc}")
    assert f"LossError: the loss is NaN in step 2, shard 1, on rank {rank}" in message
    assert "on_nan='warn'" in message


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(("policy", "num_warnings"), [("warn", 1), ("ignore", 0)])
def test_a_nan_loss_may_be_passed_over(crew, nproc, policy, num_warnings):
    by_rank = crew(nproc, bad_scripts.nan_loss_and_on, shards=2, on_nan=policy, **QUICK)
    assert [step for step, _ in by_rank] == [4] * nproc
    warned = [message for _, messages in by_rank for message in messages]
    assert len(warned) == num_warnings
    assert all("step 2, shard 1" in message for message in warned)


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_count_is_refused(crew, nproc, weight):
    kind, message = everyone_told(crew, nproc, bad_scripts.weighted, [weight])
    assert (kind, f"weight={weight}" in message) == ("ConfigError", True)


@pytest.mark.parametrize(("nproc", "shards"), [(1, 1), (1, 2), (2, 2), (2, 4)])
def test_weights_that_sum_to_zero_are_an_error_on_every_rank(crew, nproc, shards):
    kind, message = everyone_told(crew, nproc, bad_scripts.weighted, [1.0, 0.0, 1.0], shards=shards)
    assert kind == "LossError"
    assert "the weights of all shards of step 2 sum to zero" in message


@pytest.mark.parametrize(("length", "batch_size", "nproc", "shards"), [(9, 4, 1, 1), (2, 2, 1, 2), (2, 2, 2, 2)])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_batchnorm_that_meets_one_sample_is_named_with_the_remedy(crew, length, batch_size, nproc, shards, precision):
    settings = {"shards": shards, "precision": precision}
    kind, message = everyone_told(crew, nproc, bad_scripts.sample_alone_in_a_shard, length, batch_size, **settings)
    assert kind == "ModelError"
    assert "layer '1.0' (BatchNorm1d) met a shard of one sample" in message
    assert "drop_last=True" in message


@pytest.mark.parametrize("on_rank", [None, 1])
def test_parameters_that_are_no_longer_used_are_named_and_nobody_waits(crew, on_rank):
    with pytest.raises(LaunchError) as caught:
        crew(2, bad_scripts.run, bad_scripts.unused_after_the_first_step, on_rank, **QUICK)
    message = str(caught.value)
    assert "ModelError" in message
    assert "second.weight, second.bias" in message
    assert "step 2" in message
    assert "find_unused_parameters=True" in message


@pytest.mark.parametrize("on_rank", [None, 1])
def test_parameters_that_are_no_longer_used_are_welcome_if_said_so(crew, on_rank):
    settings = {"find_unused_parameters": True, **QUICK}
    assert crew(2, bad_scripts.told, bad_scripts.unused_after_the_first_step, on_rank, **settings) == [None, None]


def test_a_collective_in_each_micro_step_is_refused_where_ranks_may_have_other_numbers_of_them(crew):
    for nproc in (1, 2):
        kind, message = everyone_told(crew, nproc, bad_scripts.collective_in_every_micro_step, shards=2 * nproc)
        assert kind == "UsageError"
        assert "all_reduce in the loop's body, in micro-step 1 of step 1" in message
        assert "`if team.ends_step:`" in message
    assert crew(2, bad_scripts.told, bad_scripts.collective_in_every_micro_step, **QUICK) == [None, None]


def test_a_collective_in_a_step_without_some_ranks_is_refused_and_nobody_waits(crew):
    with pytest.raises(LaunchError) as caught:
        crew(2, bad_scripts.run, bad_scripts.collective_at_the_end_of_steps, **QUICK)
    message = str(caught.value)
    assert message.startswith("rank 0 of 2")
    assert "global batch of 1 samples is smaller than the number of processes, so ranks 1 to 1" in message
    assert "drop_last=True" in message


def test_an_evaluation_in_mid_step_is_refused(crew):
    kind, message = everyone_told(crew, 1, bad_scripts.evaluate_in_the_body, shards=2)
    assert (kind, message.startswith("evaluate() in the loop's body")) == ("UsageError", True)


def test_a_prepared_loader_is_not_for_evaluation_by_hand(crew):
    kind, message = everyone_told(crew, 2, bad_scripts.evaluate_by_hand)
    assert kind == "UsageError"
    assert "team.evaluate(model, loader)" in message


def test_loops_over_prepared_loaders_cannot_be_nested(crew):
    for kind, message in crew(2, bad_scripts.told, bad_scripts.nested_loops, **QUICK):
        assert (kind, "cannot be nested" in message) == ("DataError", True)


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_break_in_mid_step_is_told_and_the_partial_step_is_discarded(crew, capfd, nproc):
    assert crew(nproc, bad_scripts.left_steps, "break", shards=2 * nproc, **QUICK) == [2] * nproc
    out = capfd.readouterr().out
    assert out.count("the partial step is discarded") == 1
    assert "left in micro-step 1 of step 1" in out
    assert "if team.ends_step and ...: break" in out
    assert crew(nproc, bad_scripts.left_steps, "return", shards=2 * nproc, **QUICK) == [0] * nproc


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_data_set_comes_through_and_ends_all(crew, workers):
    with pytest.raises(LaunchError, match="sample 5 is missing"):
        crew(2, bad_scripts.run, bad_scripts.broken_sample, workers, **QUICK)
