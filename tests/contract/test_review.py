"""What a review of the fixed tree found, kept found: places in which ranks went apart, or the
answer was wrong."""

import pytest
import review_tasks
import torch

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


def test_gradients_of_every_dtype_and_memory_order_are_those_of_plain_autograd(standing_crew):
    [seen] = standing_crew(1, review_tasks.gradients_beside_autograd, shards=1, strategy="exact")
    for name, (ours, plain) in seen.items():
        torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def test_parameters_may_be_thawed_between_phases(standing_crew):
    [alone] = standing_crew(1, review_tasks.thaw_between_phases, shards=4)
    for nproc in (2, 3):
        assert standing_crew(nproc, review_tasks.thaw_between_phases, shards=4) == [alone] * nproc


@pytest.mark.parametrize("weighted", [False, True])
def test_shards_may_make_other_numbers_of_backward_calls(standing_crew, weighted):
    [alone] = standing_crew(1, review_tasks.other_numbers_of_calls, weighted, shards=4)
    for nproc in (2, 3):
        assert standing_crew(nproc, review_tasks.other_numbers_of_calls, weighted, shards=4) == [alone] * nproc


def test_parameters_in_any_memory_order_begin_as_on_rank_0(standing_crew):
    one, two = standing_crew(2, review_tasks.start_apart, shards=2)
    assert one == two


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_gradients_are_true_ones_behind_the_shards_and_may_be_clipped_without_a_step(standing_crew, precision):
    plain = standing_crew(1, review_tasks.clip_without_a_step, shards=2)[0]
    for nproc in (1, 2):
        for found in standing_crew(nproc, review_tasks.clip_without_a_step, shards=2, precision=precision):
            for (norm, by_hand), (expected, _) in zip(found, plain, strict=True):
                assert norm == pytest.approx(by_hand, rel=1e-4)
                assert norm == pytest.approx(expected, rel=0.01)
