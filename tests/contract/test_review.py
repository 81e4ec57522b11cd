"""What a review of the fixed tree found, kept found: places in which ranks went apart, or the answer was wrong."""

import pytest
import review_tasks
import torch

from lockstep.errors import LaunchError

pytestmark = pytest.mark.timeout(60)


def test_gradients_of_every_dtype_and_memory_order_are_those_of_plain_autograd(crew):
    [seen] = crew(1, review_tasks.gradients_beside_autograd, shards=1, strategy="exact")
    for name, (ours, plain) in seen.items():
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("task", [review_tasks.thaw_in_the_body, review_tasks.thaw_at_a_step])
def test_it_does_not_matter_where_parameters_are_thawed(crew, task):
    [alone] = crew(1, task, shards=4)
    for nproc in (2, 3, 4):
        assert crew(nproc, task, shards=4) == [alone] * nproc


@pytest.mark.parametrize("nproc", [1, 2])
@pytest.mark.parametrize(
    ("task", "said"),
    [
        (review_tasks.late_parameter, "belongs to no prepared model"),
        (review_tasks.optimizer_in_backward, "within the backward pass"),
        (review_tasks.growing_buffer, "the buffer 'cache' of Growing became"),
        (review_tasks.third_call_in_the_last_turn, r"called backward\(\) 3 times"),
    ],
)
def test_what_would_set_ranks_apart_is_refused(crew, nproc, task, said):
    with pytest.raises(LaunchError, match=said):
        crew(nproc, task, shards=4)


@pytest.mark.parametrize("nproc", [1, 2, 4])
@pytest.mark.parametrize("strategy", ["exact", "stock"])
def test_a_buffer_that_begins_with_infinity_becomes_what_the_shards_make_of_it(crew, nproc, strategy):
    name = "exact" if strategy == "exact" else "single" if nproc == 1 else "ddp"
    for lowest in crew(nproc, review_tasks.running_minimum, shards=4, strategy=name):
        assert lowest == pytest.approx(-2.5)


def test_parameters_in_any_memory_order_begin_as_on_rank_0(crew):
    one, two = crew(2, review_tasks.start_apart, shards=2)
    assert one == two


def test_a_rank_without_samples_is_sent_gradients_and_not_the_buckets_they_lie_in(crew):
    few, many = (crew(2, review_tasks.handover_bytes, layers, shards=2)[0] for layers in (4, 16))
    assert many < 6 * few, "what is sent grows faster than the model"


def test_any_forgets_what_a_step_said_that_was_left(crew):
    assert crew(1, review_tasks.any_after_a_break, shards=4) == [[False]]


def test_clipping_without_a_step_is_refused_where_the_loss_is_scaled(crew):
    with pytest.raises(LaunchError, match=r"clip_grad_norm_\(\) in a step without SGD.step\(\)"):
        crew(1, review_tasks.clip_without_a_step, shards=2, precision="16-mixed")
