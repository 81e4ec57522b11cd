"""What a process adds up by itself: gradients by weight, buffers by their changes."""

from types import SimpleNamespace

import pytest
import torch
from codes import raises
from torch import nn
from torch.nn import Parameter, functional

from lockstep._base.errors import UsageError
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._sync import exact
from lockstep._sync.bucket_sum import BucketSum
from lockstep._sync.buckets import make_buckets
from lockstep._sync.buffers import ShardBuffers, add_changes
from lockstep._sync.changes import as_bits
from lockstep._sync.ddp import DDPSums
from lockstep._sync.exact import ExactStrategy
from lockstep._sync.gradients import Gradients, add_weighted
from lockstep._sync.news import NOTHING


class Buffers(nn.Module):
    def __init__(self, **buffers):
        super().__init__()
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)


def run(model, *shards, all_reduce=lambda change: change, others=0):
    """A step whose shards have equal weight; each is a function that changes the buffers.
    ``others``: on other ranks."""
    buffers, changes = ShardBuffers(), {}
    buffers.attach(model)
    buffers.begin_phase(len(shards) + others)
    for number, shard in enumerate(shards):
        with torch.no_grad():
            shard()
        add_changes(changes, buffers.take_changes(1 / len(shards), is_lowest_shard=number == 0))
        buffers.rewind()
    buffers.apply({number: all_reduce(change) for number, change in changes.items()})


def test_a_single_shards_buffers_become_its_own_bit_for_bit():
    model = Buffers(
        wide=torch.tensor([1.0, 1e15, -3.0, float("inf"), 5.0], dtype=torch.float64),
        low=torch.tensor([1e10, 1.0]),
        narrow=torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        spectrum=torch.tensor([1 + 1j]),
        count=torch.tensor(-(2**62)),
        flag=torch.tensor([False, True]),
        scalar=torch.tensor(1.0),
        zero=torch.tensor(1.0),
    )
    values = {
        "wide": torch.tensor([0.1, 1e-9, -0.0, float("nan"), 5.0], dtype=torch.float64),
        "low": torch.tensor([1e-10, 0.1]),
        "narrow": torch.tensor([0.1, 3e38], dtype=torch.bfloat16),
        "spectrum": torch.tensor([complex(-0.0, 0.1)]),
        "count": torch.tensor(2**62 + 1),
        "flag": torch.tensor([True, True]),
        "scalar": torch.tensor(0.3),
        "zero": torch.tensor(-0.0),
    }

    def shard():
        for name, value in values.items():
            model.get_buffer(name).copy_(value)

    run(model, shard)
    for name, value in values.items():
        found = model.get_buffer(name)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.reshape(-1).view(torch.uint8).tolist() == value.reshape(-1).view(torch.uint8).tolist(), name


def test_what_a_single_shard_leaves_alone_stays():
    model = Buffers(mean=torch.tensor([-0.0, float("nan")]))
    buffers = ShardBuffers()
    buffers.attach(model)
    buffers.begin_phase(1)
    buffers.apply({0: buffers.absent(0)})  # changed in an earlier phase only
    assert model.mean.view(torch.int32).tolist() == torch.tensor([-0.0, float("nan")]).view(torch.int32).tolist()


def test_integers_become_those_of_the_lowest_shard_exactly_also_beyond_2_to_53():
    big = 2**62 + 1
    model = Buffers(count=torch.tensor([2**53 + 1, -big]))
    run(model, lambda: model.count.add_(torch.tensor([2, -(2**40) - 1])), lambda: model.count.add_(7))
    assert model.count.tolist() == [2**53 + 3, -big - 2**40 - 1]


def test_values_without_a_measurable_change_stay_and_can_become_zero():
    start = torch.tensor([float("inf"), float("-inf"), float("nan"), 1e16, 3e38, -0.0])
    model = Buffers(lowest=start.clone())
    buffers = ShardBuffers()
    buffers.attach(model)
    buffers.begin_phase(2)
    buffers.apply({0: buffers.absent(0)})  # changed in another phase, and in no shard of this one
    assert torch.equal(model.lowest.view(torch.int32), start.view(torch.int32))
    for zero in (0.0, -0.0):
        model.lowest = start.clone()
        run(model, lambda zero=zero: model.lowest.fill_(zero), lambda zero=zero: model.lowest.fill_(zero))
        assert model.lowest.tolist() == [0.0] * 6


# changes are measured in another way beside a NaN
@pytest.mark.parametrize("beside", [1.0, float("nan")])
def test_a_zero_keeps_its_sign_whichever_zero_shards_write_over_it(beside):
    model = Buffers(mean=torch.tensor([-0.0, 0.0, beside]))
    after = torch.tensor([0.0, -0.0, 3.0])
    run(model, lambda: model.mean.copy_(after), lambda: model.mean.copy_(after))
    assert model.mean.tolist() == [0.0, 0.0, 3.0]
    assert model.mean.signbit().tolist() == [True, False, False]


def test_a_buffer_that_nobody_changed_keeps_its_bits_and_its_memory():
    constant = torch.tensor([0.1, 1e-40, float("nan")])
    model = Buffers(constant=constant.clone(), mean=torch.zeros(1))
    inner = nn.Sequential(model, Buffers(constant=constant.clone()))
    untouched, address = inner[1].constant, inner[1].constant.data_ptr()
    run(inner, lambda: model.mean.add_(1.0))
    assert inner[1].constant is untouched
    assert untouched.data_ptr() == address
    assert torch.equal(untouched.view(torch.int32), constant.view(torch.int32))


def test_a_large_buffer_goes_on_from_phase_to_phase():
    # Larger ones are not compared with their values at the beginning of a phase.
    model, buffers = Buffers(mean=torch.zeros(70_000)), ShardBuffers()
    buffers.attach(model)
    for expected in (1.0, 2.0):
        buffers.begin_phase(2)
        with torch.no_grad():
            model.mean.add_(2.0)
        changes = buffers.take_changes(0.5, is_lowest_shard=True)
        buffers.rewind()
        buffers.apply(changes)
        assert model.mean.unique().tolist() == [expected]


def test_statistics_that_a_recomputed_pass_writes_without_a_count_are_undone():
    model, buffers = nn.BatchNorm1d(2), ShardBuffers()
    buffers.attach(model)
    buffers.begin_phase(2)
    functional.batch_norm(torch.ones(4, 2), model.running_mean, model.running_var, training=True)
    before = model.running_mean.clone()
    with buffers.restored_after():  # as in a layer of its own, derived from BatchNorm
        functional.batch_norm(torch.ones(4, 2), model.running_mean, model.running_var, training=True)
    assert torch.equal(model.running_mean, before)


def test_statistics_that_became_wider_are_summed_as_such():
    model, buffers = nn.BatchNorm1d(2), ShardBuffers()
    buffers.attach(model)
    buffers.begin_phase(1)
    model.running_mean.data = model.running_mean.double()
    buffers.rewind()  # as where the script catches the error about it
    buffers.begin_phase(1)
    model.running_mean.add_(1 + 1e-12)
    changes = buffers.take_changes(1.0, is_lowest_shard=True)
    buffers.rewind()
    buffers.apply(changes)
    assert model.running_mean.tolist() == [1 + 1e-12] * 2


def test_a_buffer_that_two_modules_share_is_changed_once():
    shared = torch.tensor([1.0])
    model = nn.Sequential(Buffers(mean=shared), Buffers(mean=shared))
    run(model, lambda: model[0].mean.add_(2.0), lambda: model[0].mean.add_(4.0))
    assert model[0].mean is model[1].mean
    assert shared.item() == 4.0


def test_a_buffer_that_is_assigned_anew_counts_as_changed():
    model = Buffers(mean=torch.tensor([1.0]))

    def assign(value):
        model.mean = torch.tensor([value])

    run(model, lambda: assign(3.0), lambda: assign(5.0))
    assert model.mean.item() == 4.0


def test_the_sum_over_ranks_is_that_of_the_changes():
    model = Buffers(mean=torch.tensor([1.0]), count=torch.tensor(5))
    run(model, lambda: (model.mean.add_(2.0), model.count.add_(1)), all_reduce=lambda flat: flat.mul_(3.0), others=2)
    assert (model.mean.item(), model.count.item()) == (7.0, 8)


def test_complex_buffers_are_averaged_and_half_ones_keep_their_type():
    model = Buffers(spectrum=torch.tensor([1 + 1j]), narrow=torch.ones(1, dtype=torch.bfloat16))

    def shard(by):
        model.spectrum += by
        model.narrow += 1

    run(model, lambda: shard(2j), lambda: shard(4))
    assert model.spectrum.tolist() == [3 + 2j]
    assert (model.narrow.dtype, model.narrow.item()) == (torch.bfloat16, 2.0)


def test_sums_keep_each_backward_call_apart_and_weigh_in_float32():
    one, other = Parameter(torch.zeros(2)), Parameter(torch.zeros(2, dtype=torch.bfloat16))
    first: Gradients = {}
    second: Gradients = {}
    for shard, weight in ((1.0, 0.25), (3.0, 0.75)):
        one.grad, other.grad = torch.full((2,), shard), torch.full((2,), 1.0, dtype=torch.bfloat16)
        add_weighted([one, other], first, weight)
        assert one.grad is None
        one.grad = torch.full((2,), 10 * shard)
        add_weighted([one, other], second, weight)
    assert first[one].tolist() == [2.5, 2.5]
    assert (first[other].dtype, first[other].tolist()) == (torch.float32, [1.0, 1.0])
    assert (second[one].tolist(), other in second) == ([25.0, 25.0], False)


def test_a_shard_without_weight_is_absent_although_its_gradient_is_nan():
    parameter = Parameter(torch.zeros(1))
    sums: Gradients = {}
    for gradient, weight in ((float("nan"), 0.0), (2.0, 1.0)):
        parameter.grad = torch.tensor([gradient])
        add_weighted([parameter], sums, weight)
    assert sums[parameter].tolist() == [2.0]


SPECIAL = [0.3, -0.7, 0.0, -0.0, float("inf"), float("nan"), 1e-7, 3e-5]


@pytest.mark.parametrize("shape", [(8,), (2, 4), (), (0,)], ids=str)
@pytest.mark.parametrize("factor", [1 / 3, 0.1, 1.0, 3])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128], ids=str
)
def test_a_weighted_gradient_has_the_bits_of_its_product_with_a_number(dtype, factor, shape):
    size = torch.Size(shape)
    gradient = torch.tensor(SPECIAL).to(dtype)[: size.numel()].reshape(size)
    if dtype.is_complex:
        gradient = gradient + 1j * gradient.roll(1)
    gradient = gradient.t().contiguous().t() if len(size) == 2 else gradient
    bucket = make_buckets([Parameter(torch.empty_like(gradient))])[0]
    for times in (1, 2):  # a part of a shard, or the same parameter, may come again
        total = BucketSum(bucket, ())
        total.begin_backward(factor)
        for _ in range(times):
            total.take(0, gradient)
        total.end_backward()
        total.end_shard(0)
        product = (gradient if bucket.dtype == dtype or dtype.is_complex else gradient.to(bucket.dtype)) * factor
        expected = product if times == 1 else product + product
        assert torch.equal(as_bits(total.stack[0].value.views[0]), as_bits(expected))
        assert total.missing == set()


def test_the_places_of_gradients_and_counts_do_not_depend_on_the_number_of_slices():
    parameters = [Parameter(torch.empty(size, device="meta")) for size in (3, 40, 16)]
    buckets = [make_buckets(parameters, num_slices) for num_slices in (1, 2, 3, 8)]
    flats = [bucket.take() for (bucket,) in buckets]
    assert [[view.storage_offset() for view in (*flat.views, flat.counts)] for flat in flats] == [[0, 16, 64, 80]] * 4
    assert [len(flat.counts) for flat in flats] == [3] * 4
    assert [bucket.length for (bucket,) in buckets] == [96, 96, 96, 128]


@pytest.mark.parametrize(("device", "num_bytes"), [("meta", 100 << 20), ("cpu", 25 << 20)])
def test_a_large_model_has_larger_buckets_on_a_device(device, num_bytes):
    layer = torch.empty(5 << 18, device=device)  # 5 MiB; on the CPU it is not touched
    buckets = make_buckets([Parameter(layer.view_as(layer)) for _ in range(210)], 4)
    assert max(bucket.length * 4 for bucket in buckets) // (1 << 20) == num_bytes >> 20


@pytest.mark.parametrize("factor", [0, 0.0])
def test_a_gradient_of_weight_0_is_left_out_but_not_awaited(factor):
    [bucket] = make_buckets([Parameter(torch.zeros(2)), Parameter(torch.zeros(2))])
    total = BucketSum(bucket, ())
    total.begin_backward(factor)
    total.take(0, torch.full((2,), float("nan")))
    assert total.missing == {1}
    total.end_backward()
    total.end_shard(0)
    assert (total.missing, total.used, total.stack) == (set(), set(), [])


def test_the_set_of_parameters_that_learns_most_often_is_not_forgotten_for_others_that_do_once():
    layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(12))
    sync, blocks, unknown = ExactStrategy(0, 1, 2), even_blocks(1, 2), []
    sync.attach(layers)
    for step in range(1, 25):
        frozen = step // 2 if step % 2 else None  # another in every second step
        for number, layer in enumerate(layers):
            layer.requires_grad_(number != frozen)
        plan = plan_step(step, (4,), 0, blocks)
        sums = sync.open(plan, 0)
        for micro in plan.micro_batches:
            sums.begin_shard(micro)
            sums.backward(sum(layer(torch.ones(2, 2)).mean() for layer in layers), 0, 0.5, {})
            sums.end_shard()
        news = sums.news()
        sums.finish([None], news)
        if news:
            unknown.append(step)
    sync.close()
    assert unknown == [1, 2, *range(3, 25, 2)]


@pytest.mark.parametrize("width", [1, 1 << 12])
@pytest.mark.parametrize("num_backward", [0, 1, 2])
def test_training_goes_on_after_a_phase_that_is_left_unless_gradients_have_been_sent(width, num_backward, monkeypatch):
    """They are sent in the backward pass of a rank's last shard, unless they fit into a message."""
    monkeypatch.setattr(exact, "broadcast_from_rank_0", lambda model: None)
    strategy, model = ExactStrategy(0, 2, 4), nn.Linear(width, 1 << 7, bias=False)
    monkeypatch.setattr(strategy.exchange, "start", lambda nodes: None)
    monkeypatch.setattr(strategy.exchange, "finish", lambda: None)
    strategy.attach(model)

    def phase(step, num_backward):
        sums = strategy.open(plan := plan_step(step, (8,), 0, even_blocks(2, 4)), 0)
        for micro in plan.micro_batches[:num_backward]:
            sums.begin_shard(micro)
            sums.backward(model(torch.ones(1, width)).mean(), 0, micro.fraction, {})
            if micro.index < num_backward - 1:
                sums.end_shard()
        return sums

    sums = phase(1, 2)
    sums.end_shard()
    sums.finish([None], sums.news())
    model.weight.grad = None
    phase(2, num_backward).abandon()
    if num_backward == 2 and width > 1:
        with raises(UsageError, "gradients-already-sent"):
            phase(3, 0)
    else:
        phase(3, 2).abandon()


def test_training_does_not_go_on_after_an_error_behind_the_exchange_of_a_phase(monkeypatch):
    """The other ranks have got their gradients, and step."""
    monkeypatch.setattr(exact, "broadcast_from_rank_0", lambda model: None)
    strategy, model = ExactStrategy(0, 2, 2), nn.Linear(1 << 12, 1 << 7, bias=False)
    monkeypatch.setattr(strategy.exchange, "start", lambda nodes: None)
    monkeypatch.setattr(strategy.exchange, "finish", lambda: None)
    strategy.attach(model)
    sums = strategy.open(plan := plan_step(1, (8,), 0, even_blocks(2, 2)), 0)
    for micro in plan.micro_batches:
        sums.begin_shard(micro)
        sums.backward(model(torch.ones(1, 1 << 12)).mean(), 0, micro.fraction, {})
        sums.end_shard()
    sums.finish([None], sums.news())
    sums.abandon()
    with raises(UsageError, "gradients-already-sent"):
        strategy.open(plan, 0)


@pytest.mark.parametrize("num_calls", [0, 1, 2])
@pytest.mark.parametrize("usual", [1, 2])
def test_a_last_shard_that_leaves_out_a_backward_call_for_which_ddp_waits_is_refused(num_calls, usual):
    engine = SimpleNamespace(
        may_overlap=True, overlaps=False, trainable=[], names={}, learning=list, partial=set(), proven=set()
    )
    strategy = SimpleNamespace(
        engines=[engine], buffers=ShardBuffers(), parameters=[], num_shards=2, world_size=1, num_calls={}, is_weighted=False
    )
    strategy.changing, strategy.find_unused = set(), False

    def phase(number, num_calls):
        sums = DDPSums(strategy, plan := plan_step(1, (4,), 0, even_blocks(1, 2)), number)
        for micro in plan.micro_batches:
            sums.begin_shard(micro)
            for call in range(num_calls):
                sums.backward(torch.ones((), requires_grad=True) * 1, call, micro.fraction, {})
            sums.end_shard()
        return sums

    phase(0, usual).finish([None] * usual, NOTHING)
    phase(1, 0).finish([], NOTHING)  # in which the loss does not call
    strategy.world_size = 2
    phase(1, num_calls)
    if num_calls >= usual:
        phase(0, num_calls)
        return
    with raises(UsageError, "missing-backward-call"):
        phase(0, num_calls)
