"""An evaluation has the result of the plain loop that adds up in the order of its batches: on any
number of ranks, whatever batches the outer loop leaves out or repeats, and whether or not the ranks
run their batches at the same time.

The values are ill-conditioned: added in another order, they have another sum.
"""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from data_helpers import CPU, Stream, assignment
from hypothesis import Phase, example, given, note, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep._data.evaluation import Evaluation
from lockstep._data.evaluation_pass import EvaluationPass, RunningEvaluations
from lockstep._data.evaluation_source import EvaluationKey, EvaluationSource

pytestmark = pytest.mark.timeout(60)


class Group:
    """The collectives of ranks that are threads."""

    def __init__(self, size):
        self.size = size
        self._values, self._barrier = [None] * size, threading.Barrier(size, timeout=20)

    def on(self, rank):
        return Member(self, rank)

    def gather(self, rank, value):
        self._values[rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values


class Member:
    def __init__(self, group, rank):
        self.rank, self.size, self._group = rank, group.size, group

    def all_gather_object(self, value):
        return self._group.gather(self.rank, value)

    all_gather_plain = all_gather_object

    def broadcast_object(self, value):
        return self.all_gather_object(value)[0]


class Guard:
    def __init__(self):
        self.evaluations = RunningEvaluations()

    def check_outside(self, call):
        assert self.evaluations.innermost is None, call


class Order(list):
    """A metric whose value shows the order of its updates. Two of them may be equal."""

    def update(self, number, value):
        self.append((int(number), value))


LOADERS = {
    "table": lambda sizes: DataLoader(TensorDataset(torch.arange(sum(sizes))), batch_sampler=batches_of(sizes)),
    "ready": lambda sizes: [torch.tensor(indices) for indices in batches_of(sizes)],
    "stream": lambda sizes: DataLoader(Stream(sum(sizes)), sizes[0] if sizes else 1),
}


def batches_of(sizes):
    return [list(range(sum(sizes[:number]), sum(sizes[: number + 1]))) for number in range(len(sizes))]


def add_all(add, number, turn, value, weight):
    """Adds what the script adds for a pass over a batch."""
    tensor = torch.tensor([value, 1.0 + turn], dtype=torch.float64)
    add(number=value, weighted=tensor[:1], weight=weight)
    add(sums=tensor, reduction="sum")
    add(means=tensor, reduction="mean", weight=weight)
    add(counts=torch.tensor([number, 1]), reduction="sum")


def evaluate(rank, group, make_loader, plan, together, shares):
    source, guard, metrics = EvaluationSource(make_loader(), assignment(rank, group.size, 3)), Guard(), (Order(), Order())
    key, member = EvaluationKey(step=0, number=0), group.on(rank)
    over = EvaluationPass(source, key, member, CPU, guard, metrics, together=together, shares=shares)
    shared = []
    with Evaluation([nn.Linear(1, 1)], over, lambda results: None) as evaluation:
        for outer, batch in enumerate(evaluation):
            if outer == len(plan):
                break
            turns, value, weight = plan[outer]
            for turn in range(turns):
                for samples in batch.shards:
                    if together:
                        member.all_gather_object("a forward pass")
                    # where ranks run their batches at the same time, it may be another batch
                    number, rows = batch.number, samples[0] if isinstance(samples, list) else samples
                    _, value, weight = plan[min(number, len(plan) - 1)]
                    batch.update(metrics[turn], rows[0], turn)
                    add_all(batch.add, number, turn, value, weight)
                    if shares:
                        batch.share((number, turn))
                if shares:
                    shared += batch.shared()
    return dict(evaluation.results), metrics, shared


def plain_loop(batches, plan, shares):
    totals, weights, seen, shared = {}, {}, (Order(), Order()), []

    def add(*, weight=None, reduction=None, **values):
        for name, value in values.items():
            by_weight = 1.0 if reduction == "sum" else len(batches[number]) if weight is None else weight
            if by_weight == 0:
                value = value * 0
            totals.setdefault(name, []).append(value if reduction == "sum" else value * by_weight)
            weights.setdefault(name, []).append(by_weight)

    for number, (turns, value, weight) in zip(range(len(batches)), plan, strict=False):
        for turn in range(turns):
            add_all(add, number, turn, value, weight)
            seen[turn].update(batches[number][0], turn)
            shared += [(number, turn)] * shares
    results = {}
    for name, values in totals.items():
        if name in ("number", "weighted"):
            total = math.fsum(map(float, values))
        else:
            total = values[0]
            for value in values[1:]:
                total = total + value
        weight = math.fsum(weights[name])
        results[name] = total if name in ("sums", "counts") else total / weight if weight else total * math.nan
    return results, seen, shared


VALUES = (1e16, 1.0, -1e16, 3.0, -0.1)
steps = st.tuples(
    st.sampled_from([1, 1, 1, 0, 2]),  # passes over the batch
    st.sampled_from(VALUES),  # the value that it adds
    st.sampled_from([None, 2, 0]),  # its weight
)


@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@example(kind="table", size=1, num_batches=3, plan=[(1, value, None) for value in VALUES], together=False, shares=False)
@given(
    kind=st.sampled_from([*LOADERS]),
    size=st.integers(1, 3),
    num_batches=st.integers(0, 7),
    plan=st.lists(steps, min_size=1, max_size=9),
    together=st.booleans(),
    shares=st.booleans(),
)
def test_an_evaluation_is_the_plain_loop(kind, size, num_batches, plan, together, shares):
    sizes = [size] * num_batches
    expected, *lists = plain_loop(batches_of(sizes), plan, shares)
    for world_size in (1, 2, 3):
        group = Group(world_size)
        args = lambda: LOADERS[kind](sizes), plan, together and world_size > 1, shares
        with ThreadPoolExecutor(world_size) as threads:
            jobs = [threads.submit(evaluate, rank, group, *args) for rank in range(world_size)]
        for rank, job in enumerate(jobs):
            results, *found = job.result()
            note(f"rank {rank} of {world_size}: {results}, expected: {expected}")
            torch.testing.assert_close(results, expected, rtol=0, atol=0, equal_nan=True)
            assert found == lists
