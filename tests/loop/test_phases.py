"""Promises of steps and phases in one process: what is called in which order, what a phase leaves
behind, and that one that is left early leaves nothing."""

import pytest
import torch
from codes import raises
from one_process import Process

from lockstep._base.errors import LossError, UsageError
from lockstep._data.batch import Batch
from lockstep._listener import Listener
from lockstep._plan.blocks import blocks_of
from lockstep._plan.shards import plan_step

pytestmark = pytest.mark.timeout(30)
STRATEGIES = pytest.mark.parametrize("strategy", ["exact", "single"])


@STRATEGIES
def test_listeners_hear_of_step_phase_and_shards_in_order(strategy):
    process = Process(strategy=strategy)
    process.train(process.batch())
    process.phases.end_step()
    shard = ["received", "before_backward", "after_backward", "end_shard"]
    heard = [event if isinstance(event, str) else event[0] for event in process.noting.events]
    expected = ["begin_step", "begin_phase", "begin_shard", *shard, "begin_shard", *shard, "end_phase", "end_step"]
    assert heard == expected
    assert [event for event in process.noting.events if event[0] == "begin_shard"] == [
        ("begin_shard", 0),
        ("begin_shard", 1),
    ]


@STRATEGIES
@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (8,)])
def test_the_gradient_of_a_phase_is_that_of_the_mean_over_the_global_batch(strategy, sizes):
    process = Process(sizes, strategy)
    process.train(process.batch(8))
    assert process.gradient == pytest.approx(3.5)


@STRATEGIES
def test_a_later_phase_adds_to_what_an_earlier_one_has_left(strategy):
    process = Process(strategy=strategy)
    batch = process.batch(4)
    process.train(batch)
    process.train(batch)
    assert process.gradient == pytest.approx(2 * 1.5)
    assert process.phases.position() == (1, 2, None)


def test_values_of_a_phase_are_read_from_its_batch():
    process = Process()
    batch = process.batch(4)
    for x in batch.shards:
        batch.add(mean=x.mean(), count=len(x), reduction=None)
    assert batch["mean"] == pytest.approx(1.5)


@STRATEGIES
@pytest.mark.parametrize("before", [1.5, None])
def test_a_phase_that_is_left_leaves_no_gradient_and_no_step(strategy, before):
    process = Process(strategy=strategy)
    process.train(process.batch(4))
    process.phases.end_step()
    if before is None:
        process.clear()
    for x in process.batch(4, first=100.0).shards:
        process.backward(x)
        break
    assert process.phases.leave_step(failed=False) is False
    assert process.phases.step == 1
    assert process.noting.events[-1] == Listener.abandon_step.__name__
    assert process.gradient == before, "the gradient of the step stays, or the one before it is lost"
    process.clear()
    with raises(UsageError, "shards-left-early"):
        process.phases.check_outside("optimizer.step()")
    process.phases.check_outside("optimizer.step()")  # told once
    process.train(process.batch(4))
    assert process.gradient == pytest.approx(1.5)
    assert process.phases.step == 2


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_weights_and_values_of_a_phase_that_is_left_count_in_no_later_one(kind):
    process = Process()
    batch = process.batch(4)
    for x in batch.shards:
        batch.add(mean=x.mean() + 100.0, weight=kind(50.0))
        process.backward(x, weight=kind(50.0))
        break
    process.phases.leave_step(failed=True)
    batch = process.batch(4)
    for number, x in enumerate(batch.shards):
        if number == 1:
            process.backward(x, weight=kind(2.0))
            batch.add(mean=x.mean())
    assert process.gradient == 2.5
    assert batch["mean"] == 2.5


def test_a_step_that_is_left_counts_if_a_phase_is_complete_and_none_is_open():
    process = Process()
    assert (process.batch() and process.phases.leave_step(failed=False), process.phases.step) == (False, 0)
    process.train(process.batch())
    assert (process.phases.leave_step(failed=False), process.phases.step) == (True, 1)
    assert process.noting.events[-1] == ("end_step", 2 - 1)
    process.train(process.batch())
    assert (process.phases.leave_step(failed=True), process.phases.step) == (False, 2)


def test_an_error_keeps_the_number_of_its_step_for_messages():
    process = Process()
    next(process.batch().shards)
    process.phases.leave_step(failed=True)
    assert process.phases.step == 1
    process.phases.check_outside("a call")  # the error is what is told


@pytest.mark.parametrize("call", ["optimizer.step()", "zero_grad()", "the next step"])
def test_what_belongs_outside_is_refused_inside_and_allowed_after_the_loop(call):
    process = Process()
    batch = process.batch()
    shards = batch.shards
    next(shards)
    calls = {
        "optimizer.step()": lambda: process.phases.check_outside("optimizer.step()"),
        "zero_grad()": lambda: process.phases.check_zero_grad("zero_grad()"),
        "the next step": process.phases.end_step,
    }
    with raises(UsageError, "inside-shards"):
        calls[call]()
    list(shards)
    if call in ("optimizer.step()", "zero_grad()"):
        calls[call]()


@pytest.mark.parametrize("sizes", [(8,), (8, 8), (8, 1)])
def test_a_batch_shows_its_samples_and_shards_whatever_the_accumulation(sizes):
    process = Process((2,))
    plan = plan_step(3, sizes, 0, process.blocks)
    data = [torch.empty(micro.num_samples) for micro in plan.micro_batches]
    assert f"step 3: {sum(sizes)} samples, 2 of the shards" in repr(Batch(plan, data, process.phases, None))


def test_a_batch_of_an_earlier_step_has_no_shards_any_more():
    process = Process()
    earlier = process.batch()
    process.phases.end_step()  # without a phase
    earlier.was_passed_over = True  # as the loader knows
    process.batch()
    with raises(UsageError, "step-over"):
        next(earlier.shards)


def test_two_batches_side_by_side_have_one_phase_and_as_many_shards():
    process = Process()
    first, second = process.batch(4), process.following_batch(6, first=10.0)
    for x, y in zip(first.shards, second.shards, strict=True):
        process.backward(torch.cat([x, y]))
    assert [event for event in process.noting.events if event[0] in ("begin_phase", "end_phase")] == [
        ("begin_phase", 0),
        ("end_phase", 0),
    ]
    uneven = process.following_batch(1)
    with raises(UsageError, "shards-uneven"):
        list(zip(process.following_batch(4).shards, uneven.shards, strict=False))


def test_two_batches_of_which_a_process_has_different_shards_have_no_phase():
    process = Process()
    first, second = process.batch(8), process.following_batch(8)
    second.plan.blocks = blocks_of((1, 1))  # prepared while shards moved
    with raises(UsageError, "shards-moved"):
        list(zip(first.shards, second.shards, strict=False))


@pytest.mark.parametrize("number", range(4))
def test_a_sum_is_refused_in_whichever_call_of_whichever_phase_it_is(number):
    """Each of two phases has two calls."""
    process = Process()
    batch = process.batch()
    made = 0
    with raises(LossError, "loss-is-sum"):
        for _ in range(2):
            first = made
            for x in batch.shards:
                made = first
                for _ in range(2):
                    losses = process.model(x)
                    process.phases.backward(losses.sum() if made == number else losses.mean(), None, None, {})
                    made += 1
    assert made == number


@STRATEGIES
def test_a_shard_whose_backward_pass_failed_cannot_end(strategy):
    process = Process(strategy=strategy)
    shards = process.batch().shards
    x = next(shards)
    hook = process.model.register_full_backward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        process.backward(x.requires_grad_(True))
    hook.remove()
    with raises(UsageError, "backward-interrupted"):
        process.backward(x)
    with raises(UsageError, "backward-interrupted"):
        next(shards)


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (lambda output: 1.0, "loss-not-scalar"),
        (lambda output: output, "loss-not-scalar"),
        (lambda output: output.detach().mean(), "loss-without-gradient"),
        (lambda output: output.sum(), "loss-is-sum"),
    ],
)
def test_a_loss_that_is_none_is_refused(loss, code):
    process = Process()
    x = next(process.batch().shards)
    with raises(LossError, code):
        process.phases.backward(loss(process.model(x)), None, None, {})


@STRATEGIES
def test_a_shard_that_is_left_leaves_no_change_of_buffers(strategy):
    process, norm = Process(strategy=strategy), torch.nn.BatchNorm1d(1)
    process.add(norm)
    before = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    for x in process.batch().shards:
        norm(x)
        break
    assert not torch.equal(norm.running_mean, before["running_mean"])
    process.phases.leave_step(failed=True)
    assert all(torch.equal(buffer, before[name]) for name, buffer in norm.named_buffers())


@pytest.mark.parametrize("continued_in", ["no step", "the next step", "a phase of the next step"])
def test_a_loop_that_was_left_does_not_continue_in_another_step(continued_in):
    process = Process()
    left = iter(process.batch().shards)
    next(left)
    with raises(UsageError, "shards-left-early"):
        process.phases.leave_step(failed=False)
        process.phases.check_outside("the next step")
    if continued_in == "no step":
        with raises(UsageError, "left-loop-continued"):
            next(left)
        return
    batch = process.batch()
    if continued_in == "the next step":
        with raises(UsageError, "left-loop-continued"):
            next(left)
    for number, x in enumerate(batch.shards):
        if number == 1 and continued_in == "a phase of the next step":
            with raises(UsageError, "left-loop-continued"):
                next(left)
        process.backward(x)
    assert process.gradient == 3.5


def test_a_backward_pass_outside_of_the_shards_is_refused():
    process = Process()
    process.batch()
    with raises(UsageError, "outside-shards"):
        process.backward(torch.ones(2, 1))


def drawn(sizes, rank, num_phases=2):
    """What a rank draws in each shard, by step, phase and shard, and what it draws outside."""
    process, inside, outside = Process(sizes, rank=rank), {}, []
    for _ in range(2):
        batch = process.batch()
        outside.append(torch.rand(()).item())
        for number in range(num_phases):
            for micro in process.run_alone(batch):
                inside[process.phases.step, number, micro.shard] = torch.rand(()).item()
            outside.append(torch.rand(()).item())
        process.phases.end_step()
    return inside, outside


def test_random_numbers_belong_to_step_phase_and_shard_whoever_runs_it():
    alone, outside = drawn((4,), 0)
    assert len(set(alone.values())) == len(alone) == 2 * 2 * 4
    for sizes in ((2, 2), (1, 3)):
        by_rank = [drawn(sizes, rank) for rank in range(2)]
        assert {**by_rank[0][0], **by_rank[1][0]} == alone
        assert [drawn_outside for _, drawn_outside in by_rank] == [outside] * 2


def test_a_script_gets_its_stream_back_after_each_shard():
    process = Process()
    batch = process.batch()
    seen = []
    for _ in range(2):
        for _x in batch.shards:
            seen.append(torch.rand(()).item())
        seen.append(torch.rand(()).item())
    assert len(set(seen)) == 6
    again = Process()
    batch = again.batch()
    for _ in range(2):
        for _x in batch.shards:
            torch.rand(7)  # more than before
        seen.append(torch.rand(()).item())
    assert seen[6:] == [seen[2], seen[5]]


class Mean(torch.nn.Linear):
    """A layer with a running mean."""

    def __init__(self):
        super().__init__(1, 1, bias=False)
        self.register_buffer("mean", torch.zeros(1))


@STRATEGIES
def test_a_buffer_may_begin_to_change_in_any_step_and_phase_and_rest_in_others(strategy):
    process, layers, expected = Process((3,), strategy), [Mean() for _ in range(3)], [0.0] * 3
    process.add(torch.nn.ModuleList(layers))
    for step in ([{0}], [set(), {1}], [{1}, {0, 2}], [{2}, set()], [{0, 1, 2}]):
        batch = process.batch(6)
        for changing in step:
            for x in batch.shards:
                for number in changing:
                    layers[number].mean.mul_(0.5).add_(x.mean() + number)
                process.backward(x)
            for number in changing:
                expected[number] = 0.5 * expected[number] + 2.5 + number
            assert [layer.mean.item() for layer in layers] == pytest.approx(expected)
        process.phases.end_step()
