"""Promises of blaming samples: what is not finite, or far above what is usual, and nothing else.
Pure."""

import math

import pytest

from lockstep._tools.replay.culprits import Sample, culprits

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
