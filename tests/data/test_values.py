"""What becomes of the values of ``add``: which are taken as what, and how those of all shards are
combined."""

import itertools
import math

import pytest
import torch

from lockstep._base.errors import ConfigError, UsageError
from lockstep._data.values import COUNT, MEAN, SUM, add_up, check_weight, entry_of, on_cpu, take

COLUMN = torch.tensor([[1.0], [5.0], [2.0], [4.0]])


def taken(value, reduction=None, lengths=(4,)):
    kind, found = take("name", value, reduction, lengths)
    return kind, on_cpu(found)


def combined(*values, reduction=None, weights=None, lengths=(4,)):
    weights = weights or [1.0] * len(values)
    parts = [entry_of(*taken(value, reduction, lengths), weight) for value, weight in zip(values, weights, strict=True)]
    return add_up("name", parts).result


@pytest.mark.parametrize(
    "value",
    [3, 3.0, torch.tensor(3), torch.tensor([3.0]), torch.tensor([1.0, 5.0, 2.0, 4.0]), torch.tensor(3).numpy(), COLUMN],
)
def test_numbers_and_one_value_per_sample_become_one_float(value):
    kind, number = taken(value)
    assert (kind, number, type(number)) == (MEAN, 3.0, float)


@pytest.mark.parametrize("reduction", [None, MEAN, SUM])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("kind", [torch.Tensor.clone, torch.Tensor.numpy], ids=["tensor", "array"])
def test_a_value_that_is_changed_in_place_later_was_taken_as_it_was(kind, dtype, reduction):
    if dtype is torch.bfloat16 and kind is torch.Tensor.numpy:
        pytest.skip("NumPy has no bfloat16")
    value = kind(torch.tensor([1, 0, 1, 1]).to(dtype))
    (_, now), (_, before) = taken(value, reduction), taken(kind(torch.tensor([1, 0, 1, 1]).to(dtype)), reduction)
    value[...] = 0
    assert torch.equal(torch.as_tensor(now), torch.as_tensor(before))


def test_one_value_per_sample_may_be_a_truth_value():
    assert taken(torch.tensor([True, False, True, True])) == (MEAN, 0.75)


@pytest.mark.parametrize("shape", [(3,), (5,), (3, 1), (1, 4), (4, 4), (2, 2), (0,)])
def test_other_tensors_are_refused_unless_declared(shape):
    with pytest.raises(ConfigError, match=r"name=.*reduction='sum'") as refused:
        taken(torch.zeros(shape))
    assert str(shape) in str(refused.value)
    assert "4 samples" in str(refused.value)
    for reduction in (MEAN, SUM):
        assert taken(torch.zeros(shape), reduction)[1].shape == shape


def test_one_value_per_token_is_taken_where_the_weight_counts_tokens():
    assert taken(torch.arange(7), lengths=(4, 7.0)) == (MEAN, 3.0)
    with pytest.raises(ConfigError):
        taken(torch.arange(8), lengths=(4, 7.0, None))


def test_what_is_no_number_is_refused():
    with pytest.raises(ConfigError, match="must be a number"):
        taken("three")


@pytest.mark.parametrize(
    ("value", "kind", "of"),
    [(3, COUNT, int), (True, COUNT, int), (3.0, SUM, float), (torch.tensor(3), COUNT, int), (torch.tensor(3.0), SUM, float)],
)
def test_a_sum_of_integers_is_an_integer_and_a_sum_of_floats_a_float(value, kind, of):
    assert (taken(value, SUM)[0], type(taken(value, SUM)[1])) == (kind, of)
    assert type(combined(value, value, reduction=SUM)) is of


@pytest.mark.parametrize("values", [[1e308, 1e308, -1e308], [math.inf, 1.0, -math.inf], [1e16, 1.0, -1e16]])
def test_numbers_have_one_sum_in_any_order(values):
    assert len({repr(combined(*order, reduction=SUM)) for order in itertools.permutations(values)}) == 1


def test_integers_are_added_exactly():
    assert combined(2**62, 2**62, 1, reduction=SUM) == 2**63 + 1
    found = combined(torch.tensor([2**60, 1]), torch.tensor([1, 2]), reduction=SUM)
    assert (found.dtype, found.tolist()) == (torch.int64, [2**60 + 1, 3])
    seen = combined(torch.tensor([True, False]), torch.tensor([True, True]), reduction=SUM)
    assert (seen.dtype, seen.tolist()) == (torch.int64, [2, 1])


def test_tensors_are_added_and_averaged_elementwise_in_float64():
    one, other = torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0, 0.0]])
    total, mean = combined(one, other, reduction=SUM), combined(one, other, reduction=MEAN, weights=[3.0, 1.0])
    assert (total.dtype, total.tolist()) == (torch.float64, [[6.0, 2.0]])
    assert (mean.dtype, mean.tolist()) == (torch.float64, [[2.0, 1.5]])


@pytest.mark.parametrize("reduction", [SUM, MEAN])
def test_what_is_kept_is_a_copy(reduction):
    value = torch.zeros(3, dtype=torch.float64)
    _, kept = taken(value, reduction)
    value += 1
    assert kept.tolist() == [0.0, 0.0, 0.0]


def test_numbers_are_added_as_if_rounded_once():
    assert combined(1e16, 1.0, -1e16, reduction=SUM) == 1.0
    assert combined(1e16, 1.0, -1e16) == 1.0 / 3.0


def test_a_mean_of_weight_0_is_left_out_and_a_mean_over_nothing_is_nan():
    nan = torch.tensor([math.nan, 1.0])
    assert combined(nan, torch.ones(2), reduction=MEAN, weights=[0.0, 2.0]).tolist() == [1.0, 1.0]
    assert combined(nan, nan, reduction=MEAN, weights=[0.0, 0.0]).isnan().tolist() == [True, True]
    assert combined(math.nan, 3.0, weights=[0.0, 2.0]) == 3.0
    assert math.isnan(combined(1.0, weights=[0.0]))


def test_shapes_that_differ_are_refused():
    with pytest.raises(UsageError, match=r"\(3,\) and \(4,\)"):
        combined(torch.ones(4), torch.ones(3), reduction=SUM)
    with pytest.raises(UsageError, match=r"\(\) and \(3,\)"):
        combined(1.0, torch.ones(3), reduction=SUM)


def test_a_sum_is_not_combined_with_a_mean():
    with pytest.raises(UsageError, match="reduction='sum'"):
        add_up("name", [(MEAN, 1.0, 1.0), (SUM, 1.0, 1.0)])
    assert add_up("name", [(COUNT, 1, 1.0), (SUM, 1.5, 1.0)]).result == 2.5


def test_weights_and_reductions_are_checked():
    assert check_weight(torch.tensor(3), MEAN, "batch.add") == 3.0
    with pytest.raises(ConfigError, match="not weighted"):
        check_weight(2.0, SUM, "batch.add")
    with pytest.raises(ConfigError, match="0 or more"):
        check_weight(-1.0, None, "batch.add")
    with pytest.raises(ConfigError, match="unknown reduction 'none'"):
        check_weight(None, "none", "batch.add")
