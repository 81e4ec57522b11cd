"""Promises of evaluation: the result of one process, to the bit, on any number of them, and nothing disturbed."""

import math
import random

import numpy
import pytest
import torch
from data_helpers import CPU, Noisy, NoisyStream, Numbers, assignment, draw, noisy_collate
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import lockstep
from lockstep.data.evaluation import Evaluation, EvaluationSource
from lockstep.data.evaluation_keys import EvaluationKey
from lockstep.errors import ConfigError, DataError, UsageError

pytestmark = pytest.mark.timeout(90)


class Alone:
    """The collectives of a single process."""

    rank, size = 0, 1

    def all_gather_object(self, value):
        return [value]


class Ranks:
    """The collectives of rank 0 among ranks whose answers are known."""

    rank = 0

    def __init__(self, *others):
        self.size = 1 + len(others[0])
        self._others = list(others)

    def all_gather_object(self, value):
        return [value, *self._others.pop(0)]


def evaluation(batches, *models, source=None, done=lambda results: None, collectives=None, metrics=()):
    source = source or EvaluationSource(batches, assignment())
    return Evaluation(
        models or [nn.Linear(1, 1)], source, collectives or Alone(), CPU, done, EvaluationKey(step=0, number=0), metrics
    )


def table(length=10):
    return TensorDataset(torch.linspace(0, 1, length, dtype=torch.float64))


class Seen:
    """A metric that notes its updates, and one whose value depends on their order."""

    def __init__(self):
        self.calls = []
        self.state = 0.0

    def update(self, values, scale=1):
        self.calls.append(values.tolist())
        self.state = self.state / 3 + float(values.sum()) * scale + random.random()


# The same on every world size


def evaluate_all_kinds():
    """Results of many evaluations that must not depend on the number of processes."""
    team = lockstep.join()
    torch.manual_seed(1)
    model = team.prepare(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)))
    loaders = {
        "ragged": DataLoader(Noisy(23), 4, collate_fn=noisy_collate),
        "shuffled": DataLoader(Noisy(23), 4, shuffle=True, collate_fn=noisy_collate),
        "workers": DataLoader(Noisy(23), 4, shuffle=True, collate_fn=noisy_collate, num_workers=1),
        "fewer batches than ranks": DataLoader(Noisy(5), 4, collate_fn=noisy_collate),
        "empty": DataLoader(Noisy(0), 4, collate_fn=noisy_collate),
        "stream": DataLoader(NoisyStream(9), 4, collate_fn=noisy_collate),
        "stream, workers": DataLoader(NoisyStream(9), 4, collate_fn=noisy_collate, num_workers=2),
        "ready": [(torch.full((size, 4), float(size)), None) for size in (3, 1, 4)],
        "ready loader": DataLoader(Noisy(6), batch_size=None),
    }
    found = {}
    for name, loader in loaders.items():
        metric = Seen()
        for attempt in range(2):
            with team.evaluate(model, loader, [metric]) as batches:
                for batch in batches:
                    inputs = batch[0] if isinstance(batch, (list, tuple)) else batch[None]
                    outputs = model(inputs[:, :4].float())
                    batches.add(loss=functional.mse_loss(outputs, torch.ones_like(outputs)))
                    batches.add(vector=outputs.argmax(1) == 0, plain=float(outputs.sum()), noise=draw()[attempt])
                    batches.add(weight=float(outputs.abs().sum()), weighted=outputs.mean())
                    batches.update(metric, outputs)
            found[name, attempt] = dict(batches.results)
        found[name, "metric"] = (metric.calls, metric.state)
    found["after"] = draw()
    return found


@pytest.fixture
def results(standing_crew):
    return standing_crew(1, evaluate_all_kinds, shards=5)[0]


def test_the_result_is_that_of_one_process_to_the_bit_on_every_rank_of_every_world_size(standing_crew, results):
    assert results["ragged", 0].keys() == {"loss", "vector", "plain", "noise", "weighted"}
    assert results["empty", 0] == {}
    assert results["workers", 0].keys() == results["shuffled", 0].keys()
    assert results["shuffled", 0]["loss"] != results["shuffled", 1]["loss"], "the second pass was shuffled alike"
    assert results["ragged", 0]["loss"] == results["ragged", 1]["loss"]
    for nproc in (2, 3, 5):
        for by_rank in standing_crew(nproc, evaluate_all_kinds, shards=5):
            assert by_rank == results


def test_batches_and_averages_are_those_of_a_plain_loop():
    loader = DataLoader(table(), 4)
    with evaluation(loader) as batches:
        for (values,) in batches:
            batches.add(mean=values.mean(), vector=values, array=values.numpy(), number=float(values[0]))
    plain = [values for (values,) in loader]
    assert [len(values) for values in plain] == [4, 4, 2]
    for name in ("mean", "vector", "array"):
        assert batches[name] == pytest.approx(0.5)
    assert batches["number"] == pytest.approx(sum(float(values[0]) * len(values) for values in plain) / 10)


def test_weights_replace_sample_counts_and_no_weight_is_absence():
    with evaluation(DataLoader(table(3), 1)) as batches:
        for number, _ in enumerate(batches):
            # The mean over the tokens of a batch without tokens is not a number.
            batches.add(weight=number, loss=[math.nan, 2.0, 5.0][number])
            batches.add(weight=0, never=1.0)
    assert batches["loss"] == 4.0
    assert math.isnan(batches["never"])


@pytest.mark.parametrize("value", [None, "0.5", [1, 2]])
def test_what_cannot_be_averaged_is_refused_where_it_is_given(value):
    with evaluation(DataLoader(table(), 4)) as batches:
        for _ in batches:
            with pytest.raises(ConfigError, match="add\\(loss="):
                batches.add(loss=value)


def test_a_batch_that_cannot_be_counted_needs_a_weight():
    with evaluation([{"text": "one"}, {"text": "two"}]) as batches:
        for number, _ in enumerate(batches):
            with pytest.raises(ConfigError, match="weight=number of samples"):
                batches.add(length=3)
            batches.add(weight=number + 1, length=number)
    assert batches["length"] == pytest.approx(2 / 3)


def test_a_metric_keeps_what_it_was_given_also_if_the_script_writes_to_it_again():
    metric, buffer = Seen(), torch.zeros(2)
    with evaluation(DataLoader(table(3), 1)) as batches:
        for number, _ in enumerate(batches):
            buffer.fill_(number)
            batches.update(metric, buffer)
    assert metric.calls == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize(("mine", "theirs"), [(True, (-1, [])), (False, (0, ["Seen"]))])
def test_ranks_that_know_different_metrics_are_told_so_all_alike(mine, theirs):
    batches = evaluation(DataLoader(table(1), 1), collectives=Ranks([[]], [theirs]))
    batches.__enter__()
    for (values,) in batches:
        if mine:
            batches.update(Seen(), values)
    with pytest.raises(UsageError, match=r"rank 0: .*rank 1: .*metrics="):
        batches.__exit__(None, None, None)


def test_no_metrics_anywhere_is_fine_also_where_ranks_name_different_ones_in_vain():
    with evaluation(DataLoader(table(1), 1), collectives=Ranks([[]], [(-1, [])]), metrics=[Seen()]) as batches:
        for _ in batches:
            pass


# Data


def test_a_distributed_sampler_is_refused_because_samples_would_be_lost():
    sampler = DistributedSampler(range(9), num_replicas=2, rank=0)
    for refused in (
        DataLoader(Numbers(9), 4, sampler=sampler),
        DataLoader(Numbers(9), batch_sampler=BatchSampler(sampler, 4, False)),
    ):
        with pytest.raises(DataError, match="DistributedSampler"):
            EvaluationSource(refused, assignment())


def test_workers_change_nothing_and_persist_if_asked():
    def drawn(**options):
        source = EvaluationSource(DataLoader(Noisy(9), 2, collate_fn=noisy_collate, **options), assignment())
        found = []
        for _ in range(2):
            with evaluation(None, source=source) as batches:
                for batch in batches:
                    batches.add(x=batch[0], y=batch[1])
            found.append(dict(batches.results))
        return found

    expected = drawn()
    assert drawn(num_workers=2) == drawn(num_workers=1, persistent_workers=True) == expected


def test_several_workers_do_not_read_a_stream_several_times():
    with evaluation(DataLoader(NoisyStream(5), 2, num_workers=2)) as batches:
        assert sum(len(batch) for batch in batches) == 5


# Nothing is disturbed


def network():
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1), nn.Sequential(nn.Dropout()))
    model.train()
    model[1].eval()  # a frozen part
    return model


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("grad", [True, False])
def test_modes_gradients_and_streams_are_as_before_also_after_an_exception(fails, grad):
    models = [network(), nn.Linear(1, 1).eval()]
    modes = [[module.training for module in model.modules()] for model in models]
    torch.manual_seed(3), numpy.random.seed(3), random.seed(3)
    expected = draw()
    torch.manual_seed(3), numpy.random.seed(3), random.seed(3)
    with torch.set_grad_enabled(grad):
        try:
            with evaluation(DataLoader(Noisy(5), 2), *models) as batches:
                for _ in batches:
                    assert not torch.is_grad_enabled()
                    assert not any(module.training for model in models for module in model.modules())
                    draw()
                    if fails:
                        raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        assert torch.is_grad_enabled() == grad
    assert [[module.training for module in model.modules()] for model in models] == modes
    assert draw() == expected


def test_results_are_handed_on_once_and_not_after_an_error():
    handed = []
    with evaluation(DataLoader(table(), 4), done=handed.append) as batches:
        for (values,) in batches:
            batches.add(mean=values)
    assert handed == [{"mean": pytest.approx(0.5)}]
    with pytest.raises(ZeroDivisionError), evaluation(DataLoader(table(), 4), done=handed.append):
        raise ZeroDivisionError
    assert len(handed) == 1


def train_around_evaluation(evaluate):
    team = lockstep.join()
    model, loader = team.prepare(nn.Linear(4, 1), DataLoader(Noisy(12), 4, shuffle=True))
    plain, seen = DataLoader(Noisy(7), 2), []
    for _ in team.epochs(2):
        for batch in loader:
            for inputs in batch.shards:
                seen.append(inputs.sum().item())
                team.backward(model(inputs.float()).mean())
                seen.append(draw())
            if evaluate and team.step % 2:
                with team.evaluate(model, plain) as batches:
                    for values in batches:
                        batches.add(x=values)
            seen.append(draw())
        seen.append(draw())
        if evaluate:
            with team.evaluate(model, plain) as batches:
                for values in batches:
                    batches.add(x=values)
        seen.append(draw())
    return seen


def test_evaluation_does_not_disturb_the_streams_of_training(standing_crew):
    assert standing_crew(2, train_around_evaluation, True) == standing_crew(2, train_around_evaluation, False)


# The block


def test_a_loop_may_be_left_early_and_started_again():
    source = EvaluationSource(DataLoader(table(), 2, num_workers=1, persistent_workers=True), assignment())
    for length in (2, 5):
        with evaluation(None, source=source) as batches:
            for number, (values,) in enumerate(batches, 1):
                batches.add(count=1.0, total=values)
                if number == length:
                    break
            with pytest.raises(UsageError, match="belongs in the loop"):
                batches.add(count=1.0)
        assert batches["count"] == 1.0


def test_uses_outside_of_the_block_or_loop_are_refused():
    batches = evaluation(DataLoader(table(), 4))
    with pytest.raises(UsageError, match="inside the block"):
        next(iter(batches))
    with pytest.raises(UsageError, match="after the `with` block"):
        batches["loss"]
    with batches:
        for wrong in (lambda: batches.add(loss=1.0), lambda: batches.update(Seen(), torch.ones(1))):
            with pytest.raises(UsageError, match="belongs in the loop"):
                wrong()
        with pytest.raises(UsageError, match="after the `with` block"):
            batches.results  # noqa: B018
    with pytest.raises(UsageError, match="inside the block"):
        next(iter(batches))
    with pytest.raises(UsageError, match="entered once"):
        batches.__enter__()


def test_an_unknown_result_lists_those_that_are_there():
    with evaluation(DataLoader(table(), 4)) as batches:
        for (values,) in batches:
            batches.add(loss=values, accuracy=1)
    with pytest.raises(KeyError, match="available: loss, accuracy"):
        batches["acuracy"]
