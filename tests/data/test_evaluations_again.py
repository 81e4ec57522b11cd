"""Evaluations of a run that resumes have the random numbers of the run that goes on: their keys
depend on the step and place alone, and generators are where no evaluation has been, or where the
checkpoint has them."""

import itertools

import pytest
import torch
from data_helpers import Numbers, assignment, same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from lockstep._data.evaluation_numbers import Evaluations
from lockstep._data.evaluation_source import EvaluationKey, EvaluationSource

pytestmark = pytest.mark.timeout(60)

PLACES = st.tuples(st.sampled_from(["epoch 1", "epoch 2", "the end"]), st.integers(0, 2), st.booleans())


def keys_of(evaluations, loaders, asked):
    return [evaluations.next(loaders[loader], place, step, in_step=in_step)[1] for (place, step, in_step), loader in asked]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PLACES, st.lists(st.integers(0, 2), min_size=1, max_size=4)), min_size=1, max_size=5))
def test_a_run_that_goes_on_anywhere_numbers_its_evaluations_as_the_whole_one(sections):
    """At each place, the script evaluates on some of three loaders, one after another."""
    sections = [next(group) for _, group in itertools.groupby(sections, key=lambda section: section[0])]
    loaders = [DataLoader(Numbers(4), 2) for _ in range(3)]
    asked = [[(place, loader) for loader in chosen] for place, chosen in sections]
    whole = keys_of(Evaluations(assignment, None, set), loaders, itertools.chain(*asked))
    for first in range(len(asked)):
        rest = keys_of(Evaluations(assignment, None, set), loaders, itertools.chain(*asked[first:]))
        assert rest == whole[len(whole) - len(rest) :]
    for of_section in asked:
        found, whole = whole[: len(of_section)], whole[len(of_section) :]
        assert len(set(found)) == len(found), "two evaluations at one place have the same numbers"
        chosen = [loader for _, loader in of_section]
        assert [key.number for key in found] == [[*dict.fromkeys(chosen)].index(loader) for loader in chosen]
        assert [key.repeat for key in found] == [chosen[:number].count(loader) for number, loader in enumerate(chosen)]
        assert {key.step for key in found} == {step for (_, step, _), _ in of_section}


def test_loaders_of_evaluations_have_the_workers_of_the_run():
    loader = DataLoader(Numbers(4), 2)
    Evaluations(assignment, 1, set).next(loader, 0, 0, in_step=False)
    assert loader.num_workers == 1


class Drawn:
    """Ready batches that are drawn as they are read."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self):
        return (torch.rand(3, generator=self.generator) for _ in range(4))


class DrawnStream(Drawn, IterableDataset):
    pass


@pytest.mark.parametrize(
    "make",
    [Drawn, lambda: DataLoader(DrawnStream(), 2), lambda: DataLoader(DrawnStream(), batch_size=None)],
    ids=["ready", "stream", "ready stream"],
)
@pytest.mark.parametrize("in_checkpoints", [False, True])
def test_generators_start_over_unless_checkpoints_have_them(make, in_checkpoints):
    batches, seen = make(), []
    generator = getattr(batches, "dataset", batches).generator
    for step in range(2):
        source = EvaluationSource(batches, assignment(), {id(generator)} if in_checkpoints else ())
        seen.append([fetch() for _, _, fetch in source.deal(EvaluationKey(step=step, number=0))])
    assert same(seen[0], seen[1]) != in_checkpoints
