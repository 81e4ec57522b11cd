"""What a team of one process promises: settings reach what they set, a later launch has those of
the first, and calls do what their arguments ask for."""

import contextlib
import json
import math
import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from codes import raises
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.data import DataLoader, Dataset, Sampler, TensorDataset, get_worker_info

import lockstep
from lockstep._base.errors import ConfigError, UsageError
from lockstep._state.rundir.fixed_settings import read_fixed_settings

pytestmark = pytest.mark.timeout(60)
HOOKS = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
BIRTH = {"shards": 3, "accumulate": 2, "seed": 11, "precision": "bf16-mixed", "threads": 1}


def join(run_dir, **settings):
    return lockstep.join(run_dir=str(run_dir), **{"device": "cpu", "progress": "off", **settings})


@pytest.fixture
def team(tmp_path):
    with join(tmp_path / "run", shards=2, threads=1) as team:
        yield team


def numbers(length=12, **options):
    return DataLoader(TensorDataset(torch.arange(float(length)).unsqueeze(1)), 4, **options)


def test_a_later_launch_has_the_settings_of_the_first(tmp_path):
    for settings in (BIRTH, {}):
        with join(tmp_path, **settings) as team:
            assert {name: getattr(team.config, name) for name in BIRTH} == BIRTH
            assert (team.seed, team.num_shards, torch.get_num_threads()) == (11, 3, 1)
            assert team.autocast().fast_dtype == torch.bfloat16
            model, loader = team.prepare(nn.Linear(1, 1), numbers())
            assert len(loader) == 2
            assert next(batch.num_samples for batch in loader) == 8
            assert model(torch.ones(1, 1)).dtype == torch.float32
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    launches = [(each["event"], each.get("step")) for each in events if each["event"] in ("start", "resume")]
    assert launches == [("start", None), ("start", None), ("resume", 0)], "without a checkpoint it starts over"


@pytest.mark.parametrize("batch_size", [2, 3, 4, None])
def test_only_a_batch_smaller_than_its_shards_is_told_of_empty_ones(tmp_path, monkeypatch, batch_size):
    (reports := tmp_path / "reports").touch()
    monkeypatch.setenv("LOCKSTEP_REPORTS", str(reports))
    with join(tmp_path / "run", shards=3) as team:
        team.prepare(DataLoader(TensorDataset(torch.ones(12, 1)), batch_size))
    codes = [json.loads(line)["code"] for line in reports.read_text().splitlines()]
    assert ("batch-smaller-than-shards" in codes) is (batch_size == 2)


def test_each_training_of_a_program_has_a_number_by_which_its_command_finds_it(tmp_path):
    found = []
    for name in "ab":
        with join(tmp_path / name):
            found.append(read_fixed_settings(tmp_path / name)[1].number)
    assert found[1] == found[0] + 1


@pytest.mark.parametrize(("name", "value"), [*{**BIRTH, "shards": 2, "accumulate": 1, "seed": 12, "threads": 2}.items()])
def test_another_setting_is_refused_unless_it_is_allowed_and_then_holds(tmp_path, name, value):
    value = "32-true" if name == "precision" else value
    with join(tmp_path, **BIRTH):
        pass
    with raises(ConfigError, "fixed-setting-changed"), join(tmp_path, **{name: value}):
        pass
    if name in ("shards", "threads"):
        for settings in ({name: value, "allow": name}, {"allow": name}):
            with join(tmp_path, **settings) as team:
                # only a checkpoint makes a new setting the run's own
                assert getattr(team.config, name) == settings.get(name, BIRTH[name])


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_a_pass_has_as_many_steps_as_its_loader_is_long(tmp_path, accumulate):
    with join(tmp_path, shards=2, accumulate=accumulate, checkpoint_every="off") as team:
        kinds = [numbers(length, drop_last=drop) for length in range(4, 30, 3) for drop in (False, True)]
        kinds += [[torch.zeros(2, 1)] * length for length in range(1, 8)]
        for loader in kinds:
            prepared = team.prepare(loader)
            before, num_batches = team.step, sum(1 for _ in prepared)
            assert (num_batches, team.step - before) == (len(prepared), len(prepared)), loader


def test_objects_come_back_in_the_order_given_and_as_prepared_before(team):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule, loader = StepLR(optimizer, 1), numbers()
    prepared = team.prepare(loader, schedule, optimizer, model)
    assert prepared[1:3] == (schedule, optimizer)
    assert team.unwrap(prepared[3]) is model
    assert len(prepared[0]) == 3
    assert team.prepare(*prepared) == prepared
    assert team.prepare(model, loader) == (prepared[3], prepared[0])


def order(loader):
    return [batch.data[0][0].flatten().tolist() for batch in loader]


def test_loaders_are_shuffled_apart_whether_they_are_prepared_at_once_or_not(team, tmp_path):
    loaders = [numbers(400, shuffle=True) for _ in range(2)]
    apart = [order(team.prepare(loader)) for loader in loaders]
    assert apart[0] != apart[1]
    team.close()
    with join(tmp_path / "again", shards=2, threads=1) as other:
        assert [order(loader) for loader in other.prepare(*loaders)] == apart


class InWorkers(Dataset):
    """A sample says whether a loader worker has fetched it."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([float(get_worker_info() is not None)])


class OfTheScript(DataLoader):
    """It is iterated as it is, not read by lockstep."""

    def __iter__(self):
        yield from super().__iter__()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [DataLoader, OfTheScript])
def test_workers_fetch_samples_of_training_and_evaluation(tmp_path, workers, kind):
    def loader():
        return kind(InWorkers(), 4, num_workers=1 - workers, timeout=0 if workers else 50)

    with join(tmp_path, shards=2, workers=workers) as team:
        model, prepared = team.prepare(nn.Linear(1, 1), loader())
        found = [x.unique().item() for batch in prepared for x in batch.shards]
        with team.evaluate(model, loader()) as evaluation:
            found += [x.unique().item() for x in evaluation.shards]
    assert {*found} == {float(workers)}


COLLECTIVES = {
    "tensor": lambda: dist.all_reduce(torch.ones(())),
    "objects": lambda: dist.all_gather_object([None], "any"),
    "barrier": dist.barrier,
}


def evaluate(team, model, between, inside, share=False):
    with team.evaluate(model, numbers(), share=share) as evaluation:
        for batch in evaluation:
            between()
            for (x,) in batch.shards:
                batch.add(mean=x.mean())
                inside(x)
    return evaluation["mean"]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("call", [*COLLECTIVES.values()], ids=[*COLLECTIVES])
def test_collectives_of_the_script_are_refused_in_the_shards_of_an_evaluation_and_not_between_its_batches(team, call, share):
    model = team.prepare(nn.Linear(1, 1))
    assert evaluate(team, model, call, model, share) == 5.5
    with raises(UsageError, "collective-inside-evaluation-shards"):
        evaluate(team, model, call, lambda x: call(), share)
    with raises(UsageError, "collective-inside-evaluation-shards"), team.evaluate(model, numbers()) as evaluation:
        for _ in evaluation.shards:
            call()
    assert evaluate(team, model, call, model, share) == 5.5


class Shuffled(Sampler):
    """Draws from a generator that it gets, with a method that it gets."""

    def __init__(self, generator, draw):
        self.generator, self.draw = generator, draw

    def __iter__(self):
        return iter(self.draw(self.generator))


class Counting(Sampler):
    """Begins one further in each pass."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([(self.passes + number) % 12 for number in range(12)])

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]


class Ready:
    """Ready batches that are drawn as they are read."""

    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        return iter([torch.rand(4, 1, generator=self.generator)])


def shuffled(draw):
    return lambda kept: numbers(sampler=Shuffled(kept, draw))


# What a loader draws from; and, of that, a loader.
DRAWN_FROM = {
    "torch": (torch.Generator, shuffled(lambda g: torch.randperm(12, generator=g).tolist())),
    "numpy": (lambda: np.random.default_rng(1), shuffled(lambda g: g.permutation(12))),
    "old numpy": (lambda: np.random.RandomState(1), shuffled(lambda g: g.permutation(12))),
    "python": (lambda: random.Random(1), shuffled(lambda g: g.sample(range(12), 12))),
    "a sampler": (Counting, lambda kept: numbers(sampler=kept)),
    "ready batches": (torch.Generator, Ready),
}


@pytest.mark.parametrize("kept_by", ["register", "register, not compared", "a prepared loader", "nobody"])
@pytest.mark.parametrize("kind", DRAWN_FROM)
def test_an_evaluation_goes_on_with_what_the_run_keeps_and_begins_anew_with_all_else(team, kind, kept_by):
    make, loader_of = DRAWN_FROM[kind]
    kept, beside = make(), make()
    if kept_by.startswith("register"):
        team.register("kept", kept, compare=kept_by == "register")
    elif kept_by == "a prepared loader":
        team.prepare(loader_of(kept))
    team.register("beside", beside)
    model, loader, plain = nn.Linear(1, 1), loader_of(kept), loader_of(make())

    def samples(batches):
        return [sample for batch in batches for sample in torch.cat(list(batch)).flatten().tolist()]

    seen = []
    for _ in range(3):
        with team.evaluate(model, loader) as evaluation:
            seen.append(samples(evaluation.shards))
    expected = [samples(plain) for _ in seen]
    assert expected[0] != expected[1]
    assert seen == (expected[:1] * 3 if kept_by == "nobody" else expected)


def test_norms_are_of_the_type_asked_for(team):
    model = nn.Linear(2, 1, bias=False)
    model.weight.grad = torch.tensor([[3.0, -4.0]])
    for norm_type, norm in ((2.0, 5.0), (1.0, 7.0), (math.inf, 4.0)):
        assert team.clip_grad_norm_(model.parameters(), 100.0, norm_type) == norm
    assert team.clip_grad_norm_(model.weight, 1.0, math.inf) == 4.0
    assert model.weight.grad.tolist() == [[pytest.approx(0.75), pytest.approx(-1.0)]]


def test_print_has_the_options_of_pythons(team, capsys):
    capsys.readouterr()
    team.print("a", 1, sep="-", end="!")
    assert capsys.readouterr().out == "a-1!"


def test_best_takes_larger_or_smaller_values(team):
    loader = team.prepare(numbers())
    for _ in team.epochs(1):
        for batch in loader:
            list(batch.shards)
    assert [team.best(value, "min") for value in (2.0, 3.0, math.nan, 1.0)] == [True, False, False, True]
    assert (team.best_metric, team.best_epoch) == (1.0, 0)
    assert team.best(5.0)


def test_a_state_of_shards_is_a_copy_that_keeps_its_graph_and_its_form(team):
    model, loader = team.prepare(nn.Linear(1, 1), numbers())
    kept = team.per_shard("kept", [None])
    for batch in loader:
        for (x,) in batch.shards:
            given = model(x).sum()
            kept.value = [given, given]
            first, second = kept.value
            assert first is second
            assert first is not given
            [gradient] = torch.autograd.grad(first, model.bias)
            assert gradient == len(x)


def test_a_value_that_is_registered_is_compared_unless_it_may_differ(team):
    team.register("table", [1])
    team.register("clock", [2], compare=False)
    team.state(count=0)
    registered = team._engine.state.registered
    assert {name: adapter.is_compared for name, adapter in registered.items()} == {
        "table": True,
        "clock": False,
        "count": True,
    }


def test_optimizers_are_checked_until_the_run_is_closed(team):
    assert [*map(len, HOOKS)] == [1, 1]
    team.close()
    assert [*map(len, HOOKS)] == [0, 0]


@pytest.mark.parametrize("goes_on", [None, "in a loop", "by a host"])
def test_epochs_that_an_error_left_are_no_end_unless_training_goes_on_after_them(tmp_path, goes_on):
    with join(tmp_path / "run", shards=2, threads=1) as team:
        model = nn.Linear(1, 1)
        model, optimizer, loader = team.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), numbers())

        def take_a_step(batch):
            for (inputs,) in batch.shards:
                team.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()

        with contextlib.suppress(ZeroDivisionError):
            for _ in team.epochs(2):
                for batch in loader:
                    take_a_step(batch)
                    raise ZeroDivisionError
        for batch in loader if goes_on == "in a loop" else ():
            take_a_step(batch)
        if goes_on == "by a host":
            epochs = team.hosted_epochs(1)
            epochs.begin(0)
            epochs.end()
    manifests = (tmp_path / "run" / "checkpoints").glob("step-*/manifest.json")
    finished = [json.loads(path.read_text())["finished"] for path in manifests]
    assert any(finished) is (goes_on is not None)
