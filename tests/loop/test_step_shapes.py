"""Whatever the shards of a step do, and however its loops are left, a run has the same values,
gradients, weights, buffers, random numbers and refusals on every number of processes. All of them
but the random numbers are as plain Python computes them."""

import pytest
import torch
from step_shapes import EQUAL_SHAPES, SHAPES, buffers_of, expected_of, train

pytestmark = pytest.mark.timeout(90)
NUM_SHARDS = 6


def run(standing_crew, nproc, *args, **settings):
    """What the ranks saw, all the same, and what the shards of all of them did."""
    by_rank = standing_crew(nproc, train, *args, shards=NUM_SHARDS, timeout_s=60.0, **settings)
    for seen, _ in by_rank:
        check_equal(by_rank[0][0], seen)
    did = [item for _, of_rank in by_rank for item in of_rank.items()]
    assert len(did) == len(dict(did)), "a shard was run twice"
    return by_rank[0][0], dict(sorted(did))


def check_equal(expected, found):
    for first, second in zip(map(repr, expected), map(repr, found), strict=False):  # a NaN as any other
        assert first == second
    assert len(expected) == len(found)


def check_same(alone, among):
    for expected, found in zip(alone, among, strict=True):
        check_equal(expected, found)


def check_plain(seen, shards):
    """Compares what a run saw with plain Python."""
    carried, weight, buffers, values, shown, turn = torch.zeros(2), torch.ones(2), (0.0, 0.0, 0), {}, {*()}, 0
    for now, what, *found in seen:
        values, shown, turn = (values, shown, turn) if now == turn else ({}, {*()}, now)
        if what == "phase":
            phase, num_samples, (seen_values, *followed), _, seen_gradient, seen_buffers, _ = found
            micros = {at[2:]: did for at, did in shards.items() if at[:2] == (now, phase)}
            samples = [tuple(row) for rows, *_ in micros.values() for row in rows]
            assert len(samples) == num_samples
            assert followed or len({*samples}) == num_samples, "a sample was used twice"
            gradient, new = expected_of(micros.values(), num_samples)
            buffers = buffers_of(buffers, micros, num_samples)
            check_near(seen_buffers, torch.tensor(buffers, dtype=torch.float64))
            carried = carried if gradient is None else carried + gradient
            values |= new
            check_near(seen_gradient or (0.0, 0.0), carried)
            assert seen_values.keys() == values.keys()
            for name in values:
                check_near(seen_values[name], values[name])
            shown |= new.keys() if followed else {*()}
            for other in followed:
                assert other.keys() == shown, "the values of the phases that both batches have shared"
                check_equal([(name, seen_values[name]) for name in new], [(name, other[name]) for name in new])
        elif what == "step":
            _, updates, seen_weight = found
            if updates:
                weight, carried = weight - 0.1 * carried, torch.zeros(2)
            check_near(seen_weight, weight)
        elif what == "end of pass":
            _, seen_gradient, seen_buffers, _ = found
            check_near(seen_gradient or (0.0, 0.0), carried)
            check_near(seen_buffers, torch.tensor(buffers, dtype=torch.float64))
    check_refusals(seen)
    check_draws(seen, shards)


def check_refusals(seen):
    """Compares what is refused with how loops over shards were left."""
    expected = []
    for _, what, *found in seen:
        if what == "leaves":
            match found:
                case ["error", _]:
                    expected += ["shards-left-early"]
                case ["interrupted", _]:
                    expected += ["backward-interrupted", "shards-left-early"]
                case [_, "break"]:
                    expected += ["shards-left-early"]
                case _:
                    expected += ["inside-shards"]
    assert [code for _, what, *found in seen if what == "refused" for code in found] == expected


def check_draws(seen, shards):
    """Checks that no two places of a step have drawn the same number."""
    drawn = [(now, found[-1]) for now, what, *found in seen if what == "phase"]
    drawn += [(at[0], drawn) for at, (*_, drawn) in shards.items()]
    assert len({*drawn}) == len(drawn)


def check_near(found, expected):
    found = torch.tensor(found, dtype=torch.float64)
    torch.testing.assert_close(found, expected.double(), rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.quick
def test_steps_of_any_shape_with_loops_that_are_left(standing_crew):
    alone = run(standing_crew, 1, 1, 70, SHAPES, True)
    check_plain(*alone)
    check_same(alone, run(standing_crew, 2, 1, 70, SHAPES, True))


@pytest.mark.quick
def test_steps_of_any_shape_of_several_batches_each(standing_crew):
    alone = run(standing_crew, 1, 2, 40, SHAPES, True, accumulate=2)
    check_plain(*alone)
    check_same(alone, run(standing_crew, 3, 2, 40, SHAPES, True, accumulate=2))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_with_each_strategy(standing_crew, strategy, accumulate):
    check_plain(*run(standing_crew, 3, 3, 100, EQUAL_SHAPES, strategy=strategy, accumulate=accumulate))


@pytest.mark.parametrize("seed", [4, 5])
def test_steps_of_any_shape_in_longer_runs(standing_crew, seed):
    alone = run(standing_crew, 1, seed, 120, SHAPES, True)
    check_plain(*alone)
    for nproc in (2, 4):
        check_same(alone, run(standing_crew, nproc, seed, 120, SHAPES, True))
