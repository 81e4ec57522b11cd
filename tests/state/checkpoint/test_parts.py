"""Promises of who writes what: every tensor once, all ranks agree without talking, and none has
much more than another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep._state.checkpoint.parts import assign_tensors, part_name, state_files, state_part_name, weights_files

pytestmark = pytest.mark.timeout(60)
names = st.text("ab.", min_size=1, max_size=4)


@given(st.dictionaries(names, st.integers(0, 100)), st.lists(st.integers(0, 300), min_size=1, max_size=6), st.randoms())
def test_every_tensor_is_dealt_to_one_rank_in_whatever_order_of_names(sizes, held, random):
    parts = assign_tensors(sizes, held)
    assert len(parts) == len(held)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    shuffled = list(sizes.items())
    random.shuffle(shuffled)
    assert assign_tensors(dict(shuffled), held) == parts


@given(st.lists(st.integers(1, 50), max_size=30), st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_what_a_rank_has_to_write_already_counts(sizes, held):
    parts = assign_tensors({str(i): size for i, size in enumerate(sizes)}, held)
    loads = [load + sum(sizes[int(name)] for name in part) for load, part in zip(held, parts, strict=True)]
    for load, part in zip(loads, parts, strict=True):
        if part:  # its last tensor, the smallest, was its own because nobody had less
            assert load - min(sizes[int(name)] for name in part) <= min(loads)


def test_the_parts_of_models_and_state_are_found_in_the_order_of_ranks():
    ranks = range(12)
    models = {file: [part_name(file, rank) for rank in ranks] for file in ("model.safetensors", "model-2.safetensors")}
    state = [state_part_name(rank) for rank in ranks]
    files = sorted(["average.safetensors", "state.json", *state, *(part for parts in models.values() for part in parts)])
    for file, parts in models.items():
        assert weights_files(file, files) == parts
    assert weights_files("average.safetensors", files) == ["average.safetensors"]
    assert weights_files("model-3.safetensors", files) == []
    assert state_files(files) == state
