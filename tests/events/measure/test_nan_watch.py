"""A loss that is NaN is told of where it counts: that of no samples or tokens changes nothing."""

import contextlib
import itertools
import math
import warnings

import pytest
import torch
from codes import raises

from lockstep._base.errors import LossError
from lockstep._events.measure.nan_watch import NanWatch

pytestmark = pytest.mark.timeout(20)
WEIGHTS = {"no weight": None, "some": 2.0, "none": 0.0, "some tokens": torch.tensor(3), "no tokens": torch.tensor(0)}
COUNT_NOT = ("none", "no tokens")


@pytest.mark.parametrize("policy", ["stop", "warn", "ignore"])
def test_a_loss_is_told_of_if_it_is_nan_and_counts(policy):
    watch = NanWatch(policy, 1, 5, lambda: (7, 0, 3))
    for loss, name in itertools.product([0.5, math.inf, math.nan], WEIGHTS):
        is_wrong = math.isnan(loss) and name not in COUNT_NOT and policy != "ignore"
        with warnings.catch_warnings(record=True) as told, contextlib.ExitStack() as stack:
            warnings.simplefilter("always")
            if is_wrong and policy == "stop":
                stack.enter_context(raises(LossError, "loss-nan"))
            watch.before_backward(torch.tensor(loss), WEIGHTS[name])
        assert len(told) == (is_wrong and policy == "warn"), (loss, name)
