"""Promises of evaluation: the result of one process, to the bit, on any number of them, and nothing
disturbed."""

import itertools
import random

import numpy
import pytest
import torch
from codes import raises
from data_helpers import CPU, Noisy, NoisyStream, Numbers, assignment, draw, noisy_collate, same
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import lockstep
from lockstep._base.errors import ConfigError, DataError, UsageError
from lockstep._data.evaluation import Evaluation
from lockstep._data.evaluation_numbers import Evaluations
from lockstep._data.evaluation_pass import EvaluationPass, RunningEvaluations
from lockstep._data.evaluation_source import EvaluationKey, EvaluationSource

pytestmark = pytest.mark.timeout(90)


class Alone:
    """The collectives of a single process."""

    rank, size = 0, 1

    def all_gather_object(self, value):
        return [value]

    all_gather_plain = all_gather_object


class Ranks:
    """The collectives of rank 0 among ranks whose answers are known."""

    rank = 0

    def __init__(self, *others):
        self.size = 1 + len(others[0])
        self._others = list(others)

    def all_gather_object(self, value):
        return [value, *self._others.pop(0)]

    all_gather_plain = all_gather_object


class Outside:
    """Where a script is that trains nothing."""

    def __init__(self):
        self.evaluations = RunningEvaluations()

    def check_outside(self, call):
        if self.evaluations.innermost is not None:
            self.evaluations.innermost.refuse_inside(call)


def evaluate(batches, *models, source=None, done=lambda results: None, collectives=None, metrics=()):
    source = source or EvaluationSource(batches, assignment())
    key, collectives = EvaluationKey(step=0, number=0), collectives or Alone()
    over = EvaluationPass(source, key, collectives, CPU, Outside(), metrics)
    return Evaluation(models or [nn.Linear(1, 1)], over, done)


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
            with team.evaluate(model, loader, [metric]) as evaluation:
                for batch in evaluation:
                    for samples in batch.shards:
                        inputs = samples[0] if isinstance(samples, (list, tuple)) else samples[None]
                        outputs = model(inputs[:, :4].float())
                        batch.add(loss=functional.mse_loss(outputs, torch.ones_like(outputs)))
                        batch.add(vector=outputs.argmax(1) == 0, plain=float(outputs.sum()), noise=draw()[attempt])
                        batch.add(weight=float(outputs.abs().sum()), weighted=outputs.mean())
                        batch.update(metric, outputs)
            found[name, attempt] = dict(evaluation.results)
        found[name, "metric"] = (metric.calls, metric.state)
        short = Seen()
        with team.evaluate(model, loader, [short]) as evaluation:
            for samples in evaluation.shards:
                inputs = samples[0] if isinstance(samples, (list, tuple)) else samples[None]
                outputs = model(inputs[:, :4].float())
                evaluation.add(loss=functional.mse_loss(outputs, torch.ones_like(outputs)), noise=draw()[0])
                evaluation.update(short, outputs)
        found[name, "in one loop"] = {**evaluation.results, "calls": short.calls}
    found["after"] = draw()
    return found


@pytest.fixture
def results(standing_crew):
    return standing_crew(1, evaluate_all_kinds, shards=5)[0]


def test_the_result_is_that_of_one_process_to_the_bit_on_every_rank(standing_crew, results):
    assert results["ragged", 0].keys() == {"loss", "vector", "plain", "noise", "weighted"}
    assert results["empty", 0] == {}
    assert results["workers", 0].keys() == results["shuffled", 0].keys()
    assert results["shuffled", 0]["loss"] != results["shuffled", 1]["loss"], "the second pass was shuffled alike"
    assert results["ragged", 0]["loss"] == results["ragged", 1]["loss"] == results["ragged", "in one loop"]["loss"]
    assert [*results["ragged", "metric"][0]] == [*results["ragged", "in one loop"]["calls"]] * 2
    for nproc in (2, 5):
        for by_rank in standing_crew(nproc, evaluate_all_kinds, shards=5):
            assert by_rank == results


def evaluate_in_part():
    """Evaluations whose outer loop does more than to go through all batches."""
    team = lockstep.join()
    model = team.prepare(nn.Linear(1, 1))
    loaders = {
        "plain": lambda length: DataLoader(TensorDataset(torch.arange(float(length))), 4),
        "workers": lambda length: DataLoader(Noisy(length), 4, num_workers=1),
        "stream": lambda length: DataLoader(NoisyStream(length), 4),
        "stream, workers": lambda length: DataLoader(NoisyStream(length), 4, num_workers=1),
        "ready": lambda length: [torch.arange(first, first + 4.0) for first in range(0, length, 4)],
    }
    found, drawn = {}, []

    def run(name, loader, loop):
        with team.evaluate(model, loader) as evaluation:
            for batch in loop(evaluation):
                for samples in batch.shards:
                    values = samples[0] if isinstance(samples, (list, tuple)) else samples
                    batch.add(mean=(values if values.ndim == 1 else values[:, 0]).mean(), noise=draw()[len(drawn) % 3])
                drawn.append(draw())
        found[name] = dict(evaluation.results)

    def first_five(evaluation):
        for number, batch in enumerate(evaluation):
            if number >= 5:
                break
            yield batch

    def odd(evaluation):
        return (batch for number, batch in enumerate(evaluation) if number % 2)

    def some(evaluation):
        return (batch for batch in evaluation if torch.rand(()) < 0.5 or random.random() < 0.2)

    def agreed(evaluation):
        for batch in evaluation:
            assert len(set(team.all_gather_object(batch.number))) == 1
            yield batch

    loops = {
        "first five": first_five,
        "sliced": lambda e: itertools.islice(e, 5),
        "odd": odd,
        "some": some,
        "agreed": agreed,
    }
    for kind, make in loaders.items():
        for name, loop in loops.items():
            if "workers" not in kind or name in ("first five", "some"):
                run((kind, name), make(48), loop)
        run((kind, "none"), make(48), lambda e: itertools.islice(e, 0))
        run((kind, "few"), make(8), first_five)
    return found, drawn


def test_the_outer_loop_is_the_same_on_every_process_whatever_it_does(standing_crew):
    [(expected, drawn)] = standing_crew(1, evaluate_in_part, shards=4)
    for kind in ("plain", "workers", "stream", "stream, workers", "ready"):
        assert expected[kind, "first five"]["mean"] == 9.5
        assert expected[kind, "none"] == {}
        assert expected[kind, "few"]["mean"] == 3.5
    for kind in ("plain", "stream", "ready"):
        assert expected[kind, "sliced"]["mean"] == 9.5
        assert expected[kind, "odd"]["mean"] == 25.5
        assert expected[kind, "agreed"]["mean"] == 23.5
    assert standing_crew(3, evaluate_in_part, shards=4) == [(expected, drawn)] * 3


def call_inside(name):
    team = lockstep.join()
    model, other = team.prepare(nn.Linear(1, 1)), DataLoader(table(), 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = {
        "all_reduce": lambda: team.all_reduce(torch.ones(1)),
        "evaluate": lambda: team.evaluate(model, other),
        "log": lambda: team.log(loss=1.0),
        "best": lambda: team.best(1.0),
        "step": optimizer.step,
    }
    with team.evaluate(model, other) as evaluation:
        for batch in evaluation:
            for _ in batch.shards:
                with pytest.raises(UsageError, match=r"inside batch\.shards"):
                    calls[name]()
            calls[name]()
    return True


@pytest.mark.parametrize("name", ["all_reduce", "evaluate", "log", "best", "step"])
def test_what_all_ranks_must_do_is_refused_inside_and_allowed_in_the_outer_loop(standing_crew, name):
    assert standing_crew(2, call_inside, name) == [True, True]


def evaluate_many_loaders():
    team = lockstep.join()
    model, drawn = team.prepare(nn.Linear(1, 1)), []
    keep = [bytearray(team.rank) for _ in range(50)]  # objects of other addresses on each rank
    for length in range(1, 30):
        with team.evaluate(model, DataLoader(Noisy(length), 4, shuffle=True)) as evaluation:
            for batch in evaluation:
                for values in batch.shards:
                    batch.add(noise=values[:, 1])
        del keep[: team.rank]
        drawn.append(evaluation["noise"])
    return drawn


def test_loaders_that_are_made_for_one_evaluation_each_draw_the_same_everywhere(standing_crew):
    [expected] = standing_crew(1, evaluate_many_loaders, shards=2)
    assert len(set(expected)) == len(expected)
    assert standing_crew(2, evaluate_many_loaders, shards=2) == [expected] * 2


def evaluate_pairs(share):
    team, shared = lockstep.join(), []
    model = team.prepare(nn.Linear(1, 1))
    left, right = (DataLoader(TensorDataset(torch.arange(first, first + 10.0)), 2) for first in (0, 100))
    with team.evaluate(model, left, share=share) as one, team.evaluate(model, right, share=share) as other:
        for a, b in zip(one, other, strict=True):
            for (x,), (y,) in zip(a.shards, b.shards, strict=False):
                a.add(difference=y - x)
                b.add(noise=draw()[0])
                if share:
                    a.share(x), b.share(y)
            shared += [value.tolist() for batch in (b, a) if share for value in batch.shared()]
            team.barrier()
    return dict(one.results), dict(other.results), draw(), shared


@pytest.mark.parametrize("share", [False, True])
def test_two_loaders_are_evaluated_side_by_side(standing_crew, share):
    [expected] = standing_crew(1, evaluate_pairs, share, shards=3)
    assert expected[0] == {"difference": 100}
    assert len(expected[3]) == 10 * share
    for nproc in (2, 3):
        assert standing_crew(nproc, evaluate_pairs, share, shards=3) == [expected] * nproc


@pytest.mark.parametrize("value", [None, "0.5", [1, 2]])
def test_what_cannot_be_averaged_is_refused_where_it_is_given(value):
    with evaluate(DataLoader(table(), 4)) as evaluation:
        for batch in evaluation:
            for _ in batch.shards:
                with pytest.raises(ConfigError, match="add\\(loss="):
                    batch.add(loss=value)


def test_a_batch_that_cannot_be_counted_needs_a_weight():
    with evaluate([{"text": "one"}, {"text": "two"}]) as evaluation:
        for number, batch in enumerate(evaluation):
            for _ in batch.shards:
                with raises(ConfigError, "evaluation-weight-unknown"):
                    batch.add(length=3)
                batch.add(weight=number + 1, length=number)
                batch.add(total=3, reduction="sum")  # which needs none
    assert evaluation.results == {"length": pytest.approx(2 / 3), "total": 6}


def test_a_metric_keeps_what_it_was_given_also_if_the_script_writes_to_it_again():
    metric, buffer = Seen(), torch.zeros(2)
    with evaluate(DataLoader(table(3), 1)) as evaluation:
        for number, batch in enumerate(evaluation):
            for _ in batch.shards:
                buffer.fill_(number)
                batch.update(metric, buffer)
    assert metric.calls == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize(("mine", "theirs"), [(True, (-1, [])), (False, (0, ["Seen"]))])
def test_ranks_that_know_different_metrics_are_told_so_all_alike(mine, theirs):
    evaluation = evaluate(DataLoader(table(1), 1), collectives=Ranks([[]], [theirs]))
    evaluation.__enter__()
    for batch in evaluation:
        for (values,) in batch.shards:
            if mine:
                batch.update(Seen(), values)
    with pytest.raises(UsageError, match=r"rank 0: .*rank 1: .*metrics="):
        evaluation.__exit__(None, None, None)


def test_no_metrics_anywhere_is_fine_also_where_ranks_name_different_ones_in_vain():
    with evaluate(DataLoader(table(1), 1), collectives=Ranks([[]], [(-1, [])]), metrics=[Seen()]) as evaluation:
        for batch in evaluation:
            for _ in batch.shards:
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
            with evaluate(None, source=source) as evaluation:
                for batch in evaluation:
                    for x, y in batch.shards:
                        batch.add(x=x.double().mean(), y=y.double().mean())
            found.append(dict(evaluation.results))
        return found

    expected = drawn()
    assert drawn(num_workers=2) == drawn(num_workers=1, persistent_workers=True) == expected


def test_several_workers_do_not_read_a_stream_several_times():
    with evaluate(DataLoader(NoisyStream(5), 2, num_workers=2)) as evaluation:
        assert sum(len(samples) for batch in evaluation for samples in batch.shards) == 5


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
            with evaluate(DataLoader(Noisy(5), 2), *models) as evaluation:
                for batch in evaluation:
                    for _ in batch.shards:
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
    with evaluate(DataLoader(table(), 4), done=handed.append) as evaluation:
        for batch in evaluation:
            for (values,) in batch.shards:
                batch.add(mean=values)
    assert handed == [{"mean": pytest.approx(0.5)}]
    with pytest.raises(ZeroDivisionError), evaluate(DataLoader(table(), 4), done=handed.append):
        raise ZeroDivisionError
    assert len(handed) == 1
    with evaluate(DataLoader(table(), 4), done=handed.append):  # which adds nothing
        pass
    assert handed[1:] == [{}]


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
                with team.evaluate(model, plain) as evaluation:
                    for batch in evaluation:
                        for values in batch.shards:
                            batch.add(x=values.double().mean())
            seen.append(draw())
        seen.append(draw())
        if evaluate:
            with team.evaluate(model, plain) as evaluation:
                for batch in evaluation:
                    for values in batch.shards:
                        batch.add(x=values.double().mean())
        seen.append(draw())
    return seen


def test_evaluation_does_not_disturb_the_streams_of_training(standing_crew):
    assert standing_crew(2, train_around_evaluation, True) == standing_crew(2, train_around_evaluation, False)


# The block


def test_a_loop_may_be_left_early():
    for length in (2, 5):
        with evaluate(DataLoader(table(), 2, num_workers=1)) as evaluation:
            for number, batch in enumerate(evaluation, 1):
                for (values,) in batch.shards:
                    batch.add(count=1.0, weight=1, total=values)
                if number == length:
                    break
        assert evaluation["total"] == pytest.approx(sum(table().tensors[0][: 2 * length].tolist()) / (2 * length))


class Drawn:
    """Ready batches that are drawn as they are read."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(5)

    def __iter__(self):
        return (torch.rand(3, generator=self.generator) for _ in range(4))


@pytest.mark.parametrize("workers", [0, 2])
def test_each_evaluation_draws_from_a_generator_of_the_loaders_as_the_first_one_did(workers):
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    loader = DataLoader(Numbers(9), 2, shuffle=True, generator=generator, collate_fn=list, num_workers=workers)
    for batches in (loader, Drawn()):
        seen = []
        for step in range(3):
            dealt = EvaluationSource(batches, assignment()).deal(EvaluationKey(step=step, number=0))
            seen.append([fetch() for _, _, fetch in itertools.islice(dealt, 2)])
            dealt.close()
        assert same(seen[0], seen[1])
        assert same(seen[1], seen[2])


def test_an_evaluation_draws_on_from_a_generator_that_checkpoints_hold():
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(Numbers(9), 2, shuffle=True, generator=generator, collate_fn=list)
    seen = []
    for step in range(2):
        source = EvaluationSource(loader, assignment(), {id(generator)})
        seen.append([fetch() for _, _, fetch in source.deal(EvaluationKey(step=step, number=0))])
    assert seen[0] != seen[1]


def test_loaders_are_numbered_alike_whether_the_script_keeps_them_or_not():
    loaders, kept = Evaluations(assignment, workers=None, held=set), []
    keys = [loaders.next(DataLoader(table(), 2), 0, 0, in_step=False)[1] for _ in range(3)]
    for _ in range(12):
        kept.append(DataLoader(table(), 2))
        keys.append(loaders.next(kept[-1], 0, 0, in_step=False)[1])
    assert [(key.number, key.repeat) for key in keys] == [(number, 0) for number in range(15)]
    again = [loaders.next(loader, 0, 0, in_step=False)[1] for loader in kept]
    assert [(key.number, key.repeat) for key in again] == [(number, 1) for number in range(3, 15)]


def test_uses_outside_of_the_block_or_loop_are_refused():
    evaluation = evaluate(DataLoader(table(), 4))
    with pytest.raises(UsageError, match="inside the block"):
        next(iter(evaluation))
    with raises(UsageError, "results-before-end"):
        evaluation["loss"]
    with evaluation:
        first, *_ = batches = iter(evaluation)
        with raises(UsageError, "results-before-end"):
            evaluation.results  # noqa: B018
        with raises(UsageError, "evaluation-iterated-twice"):
            iter(evaluation)
        with raises(UsageError, "evaluation-batch-ended"):
            first.shards  # noqa: B018
        for wrong in (lambda: first.add(loss=1.0), lambda: first.update(Seen(), torch.ones(1))):
            with raises(UsageError, "evaluation-outside-shards"):
                wrong()
    with pytest.raises(UsageError, match="inside the block"):
        iter(evaluation)
    with raises(UsageError, "evaluation-entered-twice"):
        evaluation.__enter__()
    with evaluate(DataLoader(table(), 4)) as evaluation:
        batches = iter(evaluation)
        last = next(batches)
    for late in (lambda: last.shards, lambda: next(batches)):
        with pytest.raises(UsageError, match=r"loop that yields it|inside the block"):
            late()


USES = {
    "unpacked": lambda evaluation, batch: [*batch],
    "measured": lambda evaluation, batch: len(batch),
    "indexed": lambda evaluation, batch: batch[0],
    "moved": lambda evaluation, batch: batch.to("cpu"),
    "added outside": lambda evaluation, batch: batch.add(loss=1.0),
    "added to the evaluation outside": lambda evaluation, batch: evaluation.add(loss=1.0),
    "metric given to the evaluation outside": lambda evaluation, batch: evaluation.update(Seen(), torch.ones(1)),
}


@pytest.mark.parametrize("use", USES)
def test_misuse_of_a_batch_or_of_results_is_told_the_lines_to_write(use):
    with evaluate(DataLoader(table(), 4)) as evaluation:
        for batch in evaluation:
            with pytest.raises(UsageError, match=r"evaluation\.shards: .*evaluation\.add"):
                USES[use](evaluation, batch)


def test_a_value_read_from_a_batch_is_told_where_it_will_be():
    with evaluate(DataLoader(table(), 4)) as evaluation:
        for batch in evaluation:
            with pytest.raises(UsageError, match=r"Read evaluation\['loss'\]"):
                batch["loss"]


def test_the_number_of_samples_is_known_outside_too_unless_batches_are_ready_made():
    with evaluate(DataLoader(table(), 4)) as evaluation:
        assert [batch.num_samples for batch in evaluation] == [4, 4, 2]
    with evaluate([torch.ones(3)]) as evaluation:
        for batch in evaluation:
            with pytest.raises(UsageError, match="num_samples"):
                batch.num_samples  # noqa: B018


@pytest.mark.parametrize("then", ["the next batch", "another loop", "the end"])
def test_the_inner_loop_must_be_run_to_its_end(then):
    def leave():
        with evaluate(DataLoader(table(), 4)) as evaluation:
            for batch in evaluation:
                for _ in batch.shards:
                    break
                if then == "another loop":
                    for _ in batch.shards:
                        pass
                if then == "the end":
                    break

    with raises(UsageError, "call-inside-evaluation-shards"):
        leave()


def test_the_loop_over_all_shards_must_be_run_to_its_end_and_is_run_once():
    def leave():
        with evaluate(DataLoader(table(), 4)) as evaluation:
            for _ in evaluation.shards:
                break

    with raises(UsageError, "call-inside-evaluation-shards"):
        leave()
    evaluation = evaluate(DataLoader(table(), 4))
    with pytest.raises(UsageError, match="inside the block"):
        evaluation.shards  # noqa: B018
    with evaluation:
        for (values,) in evaluation.shards:
            evaluation.add(mean=values)
        with raises(UsageError, "evaluation-iterated-twice"):
            evaluation.shards  # noqa: B018
    assert evaluation["mean"] == pytest.approx(0.5)


def test_several_passes_over_a_batch_all_count_and_draw_other_numbers():
    drawn = []
    with evaluate(DataLoader(table(), 4)) as evaluation:
        for batch in evaluation:
            for turn in range(2):
                for (values,) in batch.shards:
                    batch.add(mean=values, turn=turn)
                    drawn.append(draw())
    assert (evaluation["mean"], evaluation["turn"]) == (pytest.approx(0.5), 0.5)
    assert len(drawn) == 6
    assert all(len({numbers[i] for numbers in drawn}) == 6 for i in range(3))


def test_an_unknown_result_lists_those_that_are_there():
    with evaluate(DataLoader(table(), 4)) as evaluation:
        for batch in evaluation:
            for (values,) in batch.shards:
                batch.add(loss=values, accuracy=1)
    with pytest.raises(KeyError, match="available: loss, accuracy"):
        evaluation["acuracy"]
