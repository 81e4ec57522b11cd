"""A loop over an evaluation has the values of the plain loop, bit for bit, on any number of ranks
(threads here): whatever it reads of which batches, and whatever fails on which."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from lockstep._base.errors import UsageError
from lockstep._data.assignment import ShardAssignment
from lockstep._data.evaluation import Evaluation
from lockstep._data.evaluation_pass import EvaluationPass, RunningEvaluations
from lockstep._data.evaluation_source import EvaluationKey, EvaluationSource
from lockstep.integrations.accelerate._gathering import gather
from lockstep.integrations.accelerate._loader import PromisedLoader
from lockstep.integrations.accelerate._models import with_noted_calls

pytestmark = pytest.mark.timeout(60)
SIZE = 3
CPU = torch.device("cpu")


class Guard:
    def __init__(self):
        self.evaluations = RunningEvaluations()

    def check_outside(self, call):
        assert self.evaluations.innermost is None, call


class Rank:
    """What an evaluation uses of a team: a rank, which is a thread."""

    device = CPU

    def __init__(self, rank, size, values, barrier):
        self.rank, self.size, self._values, self._barrier = rank, size, values, barrier
        self.world_size = size

    def all_gather_object(self, value):
        self._values[self.rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values

    all_gather_plain = all_gather_object

    def evaluate(self, models, loader, *, share):
        source = EvaluationSource(
            loader, ShardAssignment(rank=self.rank, world_size=self.size, num_shards=3, seed=0, loader=1)
        )
        key = EvaluationKey(step=0, number=0)
        over = EvaluationPass(source, key, self, CPU, Guard(), shares=share)
        return Evaluation(models, over, lambda results: None)


class Net(nn.Module):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(4, 3), 0

    def forward(self, x):
        self.calls += 1
        return {"logits": self.layer(x), "none": None}


def samples(number):
    x = torch.randn(number, 4, generator=torch.Generator().manual_seed(2))
    return [{"x": row, "more": {"y": int(row[0] > 0)}, "name": f"sample {place}"} for place, row in enumerate(x)]


def by_ranks(size, loop, number):
    """What the loop returns on each rank, and how often each has called the model."""
    torch.manual_seed(1)
    net, values, barrier = Net(), [None] * size, threading.Barrier(size, timeout=20)

    def run(rank):
        model = with_noted_calls(copy.deepcopy(net)).eval()
        loader = DataLoader(samples(number), SIZE)
        try:
            promised = PromisedLoader(Rank(rank, size, values, barrier), loader, loader, [model], None)
            return loop(promised, model, lambda tree: gather(tree, truncate=True)), model.calls
        except (UsageError, IndexError) as error:
            return getattr(error, "code", type(error).__name__), model.calls

    with ThreadPoolExecutor(size) as pool:
        return [*pool.map(run, range(size))]


def plainly(loop, number):
    torch.manual_seed(1)
    with torch.no_grad():
        return loop(DataLoader(samples(number), SIZE), Net(), lambda tree: tree)


def reads_all(loader, model, gather):
    told, total = [], 0
    for batch in loader:
        outputs = model(batch["x"])
        loss = (outputs["logits"][:, 0] - batch["more"]["y"]).square().mean()
        total += loss
        logits, labels, name = gather((outputs["logits"], batch["more"], batch["name"]))
        told += [logits.tolist(), labels["y"].tolist(), [*name], loss.item(), len(gather(loss.repeat(len(labels["y"]))))]
    return told, float(total)


def reads_some(loader, model, gather):
    """Other values of each batch, of which some do not exist for other batches of the round."""
    told, total = [], 0
    for step, batch in enumerate(loader):
        logits = model(batch["x"])["logits"]
        if step % 2:
            told.append(logits.sum().item())
        if len(batch["name"]) == SIZE:
            told.append(logits[SIZE - 1].tolist())
        told.append([float(value) for value in gather([logits.max(), logits.argmax(1).sum(), batch["x"][0, :2].sum()])])
        if step != 1:
            total += logits.exp().sum()
    return told, float(total)


def reads_nothing(loader, model, gather):
    return [model(batch["x"]) and step for step, batch in enumerate(loader)]


def leaves_early(loader, model, gather):
    told = []
    for step, batch in enumerate(loader):
        told.append(gather(model(batch["x"])["logits"].sum()).item())
        if step == 1:
            break
    return told


@pytest.mark.parametrize("number", [1, 6, 13])
@pytest.mark.parametrize("loop", [reads_all, reads_some, reads_nothing, leaves_early])
def test_a_loop_has_the_values_of_the_plain_one_on_any_number_of_ranks(loop, number):
    expected = plainly(loop, number)
    for size in (1, 2, 3):
        found = by_ranks(size, loop, number)
        assert [values for values, _ in found] == [expected] * size
        if loop is reads_all:  # a batch each, once
            assert sum(calls for _, calls in found) == -(-number // SIZE)


def test_what_fails_on_a_batch_of_the_loop_fails_on_every_rank_and_on_others_nowhere():
    def fails(loader, model, gather):
        for step, batch in enumerate(loader):
            logits = model(batch["x"])["logits"]
            if step == at:
                gather(logits[SIZE - 1])  # which the last batch, of one sample, does not have

    for size in (1, 2, 3):
        for at in range(5):
            found = [values for values, _ in by_ranks(size, fails, 13)]
            if at < 4:
                assert found == [None] * size
            else:
                assert sorted(found) == sorted(["IndexError", *["evaluation-failed-elsewhere"] * (size - 1)])


def test_a_loss_that_is_repeated_for_full_batches_counts_the_samples_of_the_last():
    def repeats(loader, model, gather):
        return [len(gather(model(batch["x"])["logits"].mean().repeat(SIZE))) for batch in loader]

    for size in (1, 2, 3):
        for number, expected in ((7, [3, 3, 1]), (6, [3, 3]), (2, [2])):
            assert [values for values, _ in by_ranks(size, repeats, number)] == [expected] * size
