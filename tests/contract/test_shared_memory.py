"""Tensors that share their memory with the script's, or with each other, are not written to for
them."""

import pytest
import shared_memory


def test_a_buffer_that_is_an_input_leaves_the_data_alone_and_has_the_same_bits_everywhere(standing_crew):
    found = [found for nproc in (1, 2) for found in standing_crew(nproc, shared_memory.buffer_assigned, shards=2)]
    assert all(is_as_before for is_as_before, _ in found)
    assert all(weights == found[0][1] for _, weights in found)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("strategy", "nproc"), [("single", 1), ("exact", 1), ("exact", 2), ("ddp", 2)])
def test_gradients_that_autograd_gives_as_views_of_one_tensor_are_right(standing_crew, strategy, nproc, accumulate):
    settings = {"strategy": strategy, "shards": 2, "accumulate": accumulate}
    for gradients, alone in standing_crew(nproc, shared_memory.gradients_of_views, accumulate, **settings):
        for gradient, expected in zip(gradients, alone, strict=True):
            assert gradient == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in expected]
