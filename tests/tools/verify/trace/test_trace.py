"""Promises of a run's trace: it says what was computed, to the bit, and tracing changes nothing."""

import collections

import pytest
import torch
import tracing_scripts

from lockstep._tools.replay.digests import read_digests
from lockstep._tools.verify.trace.lines import DIRECTORY, exact, number, read_ranks
from lockstep._tools.verify.trace.traced_run import gather

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


def test_numbers_are_written_without_rounding():
    for value in (0.1, -0.0, 1e-310, float("inf"), 2.0**60 + 1):
        assert number(exact(value)).hex() == float(value).hex()
    assert number(exact(float("nan"))) != number(exact(float("nan")))


def traced(crew, tmp_path, nproc, fn, *args, **settings):
    run_dir = tmp_path / f"run-{nproc}"
    options = {"trace": "steps", "run_dir": str(run_dir), **settings}
    results = crew(nproc, fn, *args, **options)
    return results, read_ranks(run_dir, DIRECTORY)


def test_tracing_changes_nothing(crew, tmp_path):
    plain = crew(2, tracing_scripts.weights, 24, shards=2)
    for rank, (weights, after, _) in enumerate(traced(crew, tmp_path, 2, tracing_scripts.weights, 24, shards=2)[0]):
        assert after == [0, 1]
        assert all(torch.equal(one, other) for one, other in zip(weights, plain[rank][0], strict=True))
    assert not list((tmp_path / "runs").glob("*/trace"))


def test_every_shard_of_every_step_is_there_once_with_its_samples(crew, tmp_path):
    run = gather(traced(crew, tmp_path, 2, tracing_scripts.weights, 20, shards=2)[1])
    assert run.is_complete
    assert sorted(run.shards) == [(step, 0, shard, 0) for step in range(1, 7) for shard in (0, 1)]
    by_pass = collections.defaultdict(list)
    for ((_, line),) in run.shards.values():
        by_pass[line["pass"], line["epoch"]] += line["batches"][0]["samples"]
        layers = [name.partition(".")[0] for name in line["gradients"]]
        assert layers == ["3", "3", "1", "1", "0", "0"]  # as the backward pass goes
    assert {place: sorted(samples) for place, samples in by_pass.items()} == {(0, 0): [*range(20)], (1, 1): [*range(20)]}
    for first, second in run.steps.values():
        for field in ("gradients", "norms", "weights", "buffers", "state"):
            assert first[field] == second[field]
        assert set(first["weights"]) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
        assert "exp_avg of 0.weight" in first["state"]
        assert first["state"]["lr of group 0"] == "=0.01"
    assert run.loaders[0]["length"] == 20
    assert run.loaders[0]["replacement"] is False


def test_it_ends_in_order_after_the_step_asked_for_on_every_rank(crew, tmp_path):
    results, ranks = traced(crew, tmp_path, 2, tracing_scripts.weights, 24, shards=2, trace_until=4)
    assert [(after, ended) for _, after, ended in results] == [([0], 0)] * 2
    assert {len(gather(ranks).steps[step]) for step in (1, 2, 3, 4)} == {2}
    assert gather(ranks).num_steps == 4
    assert gather(ranks).is_complete


def test_every_phase_has_its_shards_and_the_gradients_at_its_end(crew, tmp_path):
    run = gather(traced(crew, tmp_path, 2, tracing_scripts.phases, 8, shards=2)[1])
    assert sorted(run.shards) == [(step, phase, shard, 0) for step in (1, 2) for phase in (0, 1) for shard in (0, 1)]
    assert run.samples_by_rank == (4, 4)
    line = run.steps[2][0]
    assert len(line["norms"]) == 2
    own = {"weight", "bias"}, {"Linear 2: weight", "Linear 2: bias"}
    for phase, gradients in enumerate(line["gradients"]):
        assert own[phase] <= set(gradients)
        assert all(
            set(found["gradients"]) == own[phase] for place, ((_, found),) in run.shards.items() if place.phase == phase
        )


def test_a_step_that_was_discarded_is_not_in_the_trace(crew, tmp_path):
    run = gather(traced(crew, tmp_path, 2, tracing_scripts.left_in_a_step, 8, shards=2)[1])
    assert [(step, line["pass"]) for step, (line, _) in run.steps.items()] == [(1, 0), (2, 1)]
    assert sorted(run.shards) == [(step, 0, shard, 0) for step in (1, 2) for shard in (0, 1)]
    assert {len(owners) for owners in run.shards.values()} == {1}


def test_a_step_that_failed_is_not_recorded(crew, tmp_path):
    ranks = traced(crew, tmp_path, 1, tracing_scripts.failed_in_a_step, 8, shards=2, journal_every=1)[1]
    assert sorted(gather(ranks).shards) == [(1, 0, shard, 0) for shard in (0, 1)]
    assert read_digests(tmp_path / "run-1").numbers() == [1]


def test_every_loader_of_a_phase_and_evaluations_are_recorded(crew, tmp_path):
    run = gather(traced(crew, tmp_path, 1, tracing_scripts.two_loaders_and_evaluation, shards=1)[1])
    ((_, line),) = run.shards[1, 0, 0, 0]
    assert [batch["samples"] for batch in line["batches"]] == [[0, 1, 2, 3]] * 2
    assert line["batches"][0]["content"] != line["batches"][1]["content"]
    assert [(found["step"], list(found["values"])) for found in run.evaluations] == [(2, ["loss"])]
