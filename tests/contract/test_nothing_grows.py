"""A training keeps no more after 54 steps than after 34, under any strategy: no tensors, no objects
of lockstep, no items in them, no open files and no threads."""

import growth
import pytest
from horovod_helpers import horovod

__all__ = ["horovod"]  # a fixture
pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("strategy", "nproc", "shards"),
    [
        # in buckets: see ``crew``
        pytest.param("exact", 3, 3, marks=pytest.mark.quick),
        ("exact", 2, 3),
        ("exact", 1, 3),
        ("single", 1, 1),
        ("ddp", 1, 3),
        ("ddp", 3, 3),
        ("fsdp", 3, 3),
    ],
)
def test_nothing_grows(crew, strategy, nproc, shards):
    assert crew(nproc, growth.train, strategy=strategy, shards=shards) == [{}] * nproc


@pytest.mark.usefixtures("horovod")
def test_nothing_grows_with_horovod(crew):
    assert crew(2, growth.train, strategy="horovod") == [{}] * 2


@pytest.mark.quick
def test_memory_of_the_sums_is_used_again(crew):
    assert crew(3, growth.new_memory, shards=6) == [[]] * 3
