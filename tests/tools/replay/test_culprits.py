"""Promises of blaming samples: what is not finite, or far above what is usual, and nothing else.
Pure."""

import math

import pytest

from lockstep._tools.replay.culprits import Sample, culprits, describe, worst_place
from lockstep._tools.verify.trace.traced_run import gather

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize(
    ("losses", "blamed"),
    [
        ([1.0, math.nan, 2.0], [1]),
        ([1.0, math.inf, 2.0, math.nan], [1, 3]),
        ([1.0, 1.1, 0.9, 50.0], [3]),
        ([1.0, 60.0, 50.0], [1, 2]),
        ([1.0, 50.0, 60.0, 55.0], [2, 3, 1]),  # most are outliers: the usual is still what is small
        ([1.0, 1.1, 5.0], []),
        ([1.0, 1.0, 1.0], []),
        ([50.0], []),
        ([], []),
    ],
)
def test_who_is_to_blame(losses, blamed):
    samples = [Sample(identity=number, loss=loss) for number, loss in enumerate(losses)]
    assert [sample.identity for sample in culprits(samples)] == blamed


@pytest.mark.parametrize(
    ("losses", "worst"),
    [
        ({(0, 0): [1.0], (0, 1): [3.0]}, (0, 1)),
        ({(0, 0): [9.0], (1, 1): [math.nan]}, (1, 1)),  # as of a GAN's second model
        ({(0, 0): [math.nan, 1.0], (0, 1): [5.0]}, (0, 0)),  # a second backward call
        ({(0, 0): [1.0], (0, 1): [-math.inf]}, (0, 1)),
        ({(0, 0): [], (1, 0): [1.0], (1, 1): [2.0]}, (1, 1)),  # a first loop only computes embeddings
        ({(0, 0): [], (0, 1): []}, None),  # as an epoch that updates BatchNorm
    ],
)
def test_the_worst_loss_of_a_step_is_found_in_any_loop_and_backward_call(losses, worst):
    lines = [
        {"event": "shard", "step": 2, "phase": phase, "shard": shard, "part": 0, "losses": [loss.hex() for loss in several]}
        for (phase, shard), several in losses.items()
    ]
    run = gather([[{"event": "start", "world_size": 1}, {"event": "step", "step": 2}, *lines]])
    for shard in (None, 0, 1):
        found = worst_place(run, 2, shard)
        if shard is None or (worst and shard == worst[1]):
            assert (found and (found.phase, found.shard)) == worst
        else:
            assert found is None or found.shard == shard


def test_a_shard_whose_samples_have_no_loss_alone_is_told_of():
    assert describe("shard 3, phase 2", [])
