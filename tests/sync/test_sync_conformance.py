"""Every implementation of Sync keeps the protocol: the gradient of a step is the weighted mean over
shards. Most of a step is in test_oracle: here are the strategies and ways that it does not draw."""

import pytest
import sync_scripts
import torch

from lockstep._base.errors import LaunchError

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]
# (dp without GPUs: see test_dp)
KINDS = [("single", 1, 4), ("dp", 1, 1), ("dp", 1, 3), ("ddp", 3, 4)]
KINDS += [("exact, by collectives", 2, 3), ("exact, by collectives", 3, 5)]
SIZES = [8, 7, 8, 5]  # no shard is empty; ragged ones among them
WEIGHTS = [3.0, 1.0, 2.0, 0.5, 1.5, 2.5, 4.0, 0.25]


def shards_of(step, size, num_shards):
    sizes = [len(range(shard, size, num_shards)) for shard in range(num_shards)]
    return [part for part in torch.split(sync_scripts.samples(step, size), sizes) if len(part)]


def expected_gradient(parts, weights):
    """Of ``(x @ W + half).sum(1).mean()`` by W: the mean of x, for each column."""
    total = sum(weights)
    mean = sum(weight / total * part.double().mean(0) for part, weight in zip(parts, weights, strict=True))
    return mean.unsqueeze(1).expand(2, 2).float()


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def walked(standing_crew, known):
    """``walked(nproc, ...)``: what ``sync_scripts.walk`` saw on each rank. Whoever asks for the
    same again gets the same."""

    def walk(nproc, *args, shards):
        key = repr((nproc, args, shards))
        if key not in known:
            known[key] = standing_crew(nproc, sync_scripts.walk, *args, shards=shards)
        return known[key]

    return walk


@pytest.mark.parametrize("shards", [3, 5])
def test_the_fixed_tree_has_the_same_bits_by_collectives(walked, shards):
    (alone,) = walked(1, "exact", SIZES, shards=shards)
    for seen in walked(3, "exact, by collectives", SIZES, shards=shards):
        for (_, grads, buffers), (_, expected_grads, expected_buffers) in zip(seen, alone, strict=True):
            assert all(torch.equal(grads[name], expected_grads[name]) for name in ("weight", "narrow"))
            assert all(torch.equal(buffers[name], expected_buffers[name]) for name in expected_buffers)


@pytest.mark.parametrize(("kind", "nproc", "shards"), KINDS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["by samples", "by weight"])
def test_the_gradient_of_a_step_is_the_weighted_mean_over_its_shards(walked, kind, nproc, shards, weights):
    phases = [] if weights is None else [(((1.0, weights, "mean"),),)]
    for seen in walked(nproc, kind, SIZES, *phases, shards=shards):
        assert [step for step, _, _ in seen] == [1, 2, 3, 4]
        for step, grads, _ in seen:
            parts = shards_of(step, SIZES[step - 1], shards)
            by_shard = [len(part) for part in parts] if weights is None else weights[: len(parts)]
            torch.testing.assert_close(grads["weight"], expected_gradient(parts, by_shard), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(grads["narrow"], torch.ones(2, dtype=torch.bfloat16), rtol=0.01, atol=0)
            assert grads["never"] is None


@pytest.mark.parametrize(("kind", "nproc", "shards"), KINDS)
def test_each_phase_has_its_own_gradient_in_which_backward_calls_add_up(walked, kind, nproc, shards):
    phases = (((1.0, None, "mean"), (2.0, WEIGHTS, "mean")), ((3.0, None, "sum"),))
    by_rank = walked(nproc, kind, SIZES, phases, shards=shards)
    for seen in by_rank:
        assert [step for step, _, _ in seen] == [1, 1, 2, 2, 3, 3, 4, 4]
        for number, (step, grads, buffers) in enumerate(seen):
            parts = shards_of(step, SIZES[step - 1], shards)
            weighings = [len(part) for part in parts], WEIGHTS[: len(parts)], [1.0] * len(parts)
            by_samples, by_weight, equally = (expected_gradient(parts, by) for by in weighings)
            expected = 3.0 * len(parts) * equally if number % 2 else by_samples + 2.0 * by_weight
            torch.testing.assert_close(grads["weight"], expected, rtol=1e-5, atol=1e-6)
            assert grads["never"] is None
            assert all(torch.equal(buffers[name], by_rank[0][number][2][name]) for name in buffers)
            assert buffers["count"].item() == 2**53 + 3 * (number // 2) + (3 if number % 2 else 2)


@pytest.mark.parametrize(("kind", "nproc", "shards"), KINDS)
def test_buffers_are_combined_shard_by_shard_and_constants_never_touched(walked, kind, nproc, shards):
    by_rank = walked(nproc, kind, SIZES, shards=shards)
    mean = torch.zeros(2, dtype=torch.float64)
    for step in range(1, 5):
        parts = shards_of(step, SIZES[step - 1], shards)
        mean = sum(len(p) / SIZES[step - 1] * (0.5 * mean + 0.5 * p.double().mean(0)) for p in parts)
        for seen in by_rank:
            _, _, buffers = seen[step - 1]
            torch.testing.assert_close(buffers["mean"], mean.float(), rtol=1e-5, atol=1e-6)
            assert buffers["count"].item() == 2**53 + step  # one above 2**53 has no float64
            assert torch.equal(buffers["constant"], torch.full((2,), 0.1))
        assert all(torch.equal(by_rank[0][step - 1][2]["mean"], seen[step - 1][2]["mean"]) for seen in by_rank)


def test_which_ranks_have_samples_may_change_with_every_step(walked):
    sizes = [4, 2, 3, 1, 2, 4, 3]
    by_rank = walked(4, "ddp", sizes, shards=4)
    assert [len(seen) for seen in by_rank] == [len(sizes)] * 4
    for step, grads, _ in (each for seen in by_rank for each in seen):
        size = sizes[step - 1]
        expected = expected_gradient(shards_of(step, size, 4), [1] * size)
        torch.testing.assert_close(grads["weight"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "nproc", "shards"),
    [
        ("single", 1, 2),
        ("single", 1, 4),
        ("ddp", 2, 4),
        ("ddp", 1, 2),
        ("exact", 1, 4),
        ("exact", 2, 4),
    ],
)
def test_a_dropped_step_leaves_no_trace(walked, kind, nproc, shards):
    dropped = walked(nproc, kind, [8, 8, 8], sync_scripts.PLAIN, (2,), shards=shards)
    for seen in dropped:
        first, second, third = seen
        assert second[1] == {"weight": None, "narrow": None, "never": None}
        assert torch.equal(second[2]["mean"], first[2]["mean"])
        assert second[2]["count"] == first[2]["count"]
        expected = expected_gradient(shards_of(3, 8, shards), [2] * shards)
        torch.testing.assert_close(third[1]["weight"], expected, rtol=1e-5, atol=1e-6)


def test_ranks_begin_with_the_parameters_and_buffers_of_rank_0(standing_crew):
    states = standing_crew(3, sync_scripts.start_unlike)
    assert states[0] == states[1] == states[2]
    assert states[0]["1.running_mean"] == [0.0, 0.0]


@pytest.mark.parametrize("strategy", ["exact", "single", "ddp", "fsdp"])
@pytest.mark.parametrize("shards", [1, 3])
def test_an_error_in_a_backward_pass_that_is_caught_ends_the_shard_as_an_error(standing_crew, strategy, shards):
    for shard in range(shards):
        [(code, message, cause)] = standing_crew(1, sync_scripts.catch, shard, "nothing", strategy, shards=shards)
        assert (code, cause) == ("backward-interrupted", "ZeroDivisionError")
        assert f"step 2, shard {shard}:" in message
    assert standing_crew(1, sync_scripts.catch, shards, "nothing", strategy, shards=shards) == [3], "nothing has failed"


@pytest.mark.parametrize(
    ("strategy", "nproc", "shards"),
    [
        ("exact", 3, 4),
        pytest.param("ddp", 3, 4, marks=pytest.mark.long),
        pytest.param("fsdp", 2, 6, marks=pytest.mark.long),
    ],
)
def test_of_several_ranks_all_end_with_that_error(crew, strategy, nproc, shards):
    for shard in range(3):  # the first, one between and the last of rank 0; of ranks 0 to 2
        with pytest.raises(LaunchError) as caught:
            crew(nproc, sync_scripts.catch, shard, "nothing", strategy, shards=shards)
        assert caught.value.summary.startswith(f"UsageError: step 2, shard {shard}:")


@pytest.mark.parametrize("strategy", ["exact", "single", "ddp"])
@pytest.mark.parametrize("then", ["again", "plainly"])
def test_what_a_script_does_in_the_shard_after_such_an_error_is_refused(standing_crew, strategy, then):
    [(code, message, _)] = standing_crew(1, sync_scripts.catch, 1, then, strategy, shards=3)
    assert (code == "backward-interrupted") == (then == "again")
    assert "step 2, shard 1" in message


def test_an_error_in_a_shard_leaves_no_unit_gathered(standing_crew):
    for sharded in standing_crew(2, sync_scripts.leave_units_gathered, shards=2):
        assert sharded
        assert all(sharded.values())


def test_an_error_in_a_backward_pass_undoes_what_it_wrote_to_buffers():
    assert sync_scripts.held_through_an_error() == ([0.0, 0.0], 0)


@pytest.mark.parametrize(("strategy", "nproc"), [("exact", 1), ("exact", 2), ("exact", 3), ("ddp", 2)])
def test_layers_frozen_at_random_take_no_more_memory_with_time(standing_crew, strategy, nproc):
    looks = [4, 5, 6, 48, 49, 50]
    for found in standing_crew(nproc, sync_scripts.freeze_at_random, 50, looks, shards=3, strategy=strategy):
        assert max(found[3:]) < 1.2 * max(found[:3])
