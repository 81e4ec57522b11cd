"""A data set that the script changes while loader workers have copies of it: named once, and
nothing else is."""

import argparse
import functools
import operator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy
import pytest
import torch
from data_helpers import Numbers
from torch.utils.data import DataLoader, Dataset, Subset

from lockstep._data import worker_copies
from lockstep._data.worker_copies import WorkerCopies

pytestmark = [pytest.mark.timeout(60), pytest.mark.quick]


class Augmented(Dataset):
    def __init__(self):
        self.scale, self.transform, self.epoch = 1.0, str, 0
        self.options = {"p": 0.5}
        self.targets = torch.zeros(4)
        self.shared = torch.zeros(4).share_memory_()
        self.array = numpy.zeros(4)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.targets[index]


def limited(row, args):
    return row[: args.limit]


class WithSettings(Augmented):
    """Holds all settings of the script, of which it reads some."""

    def __init__(self):
        super().__init__()
        self.args = argparse.Namespace(step=0, seen=0, limit=3, size=2)
        self.transform = functools.partial(limited, args=self.args)

    def __getitem__(self, index):
        return self.transform(self.targets[index : index + self.args.size])


class WithAnySettings(WithSettings):
    def __getitem__(self, index):
        return self.targets[index : vars(self.args)["si" + "ze"]]


@dataclass
class Settings:
    step: int = 0
    seen: int = 0
    size: int = 2


class Holding(Augmented):
    def __init__(self, settings=None):
        super().__init__()
        self.args = settings or Settings()


class ByProperty(Holding):
    @property
    def most(self):
        return self.args.size


class ByCachedProperty(Holding):
    @functools.cached_property
    def most(self):
        return self.args.size


class ByClassMethod(Holding):
    @classmethod
    def most(cls, args):
        return args.size


class ByStaticMethod(Holding):
    @staticmethod
    def most(args):
        return args.size


class ByNestedFunction(Holding):
    def __getitem__(self, index):
        return (lambda: self.targets[: self.args.size])()


class ByText(Holding):
    def __getitem__(self, index):
        return self.targets[: operator.attrgetter("size")(self.args)]


helpers = ModuleType("helpers")
helpers.of_size = lambda args: range(args.size)


class ByFunctionOfModule(Holding):
    def __getitem__(self, index):
        return self.targets[helpers.of_size(self.args)]


def collate(rows, args):
    return rows[: args.size]


class WithEpochs(Augmented):
    def set_epoch(self, epoch):
        self.epoch = epoch


def scale(data):
    data.scale *= 0.9


def exchange(data):
    data.transform = repr


def option(data):
    data.options["p"] *= 0.9


def target(data):
    data.targets[1] += 1


def array(data):
    data.array[1] += 1


def shared(data):
    data.shared[1] += 1


def setting(name):
    def change(data):
        data.args.seen += 1
        setattr(data.args, name, getattr(data.args, name) + 1)

    return change


def nothing(data):
    data.scale = data.scale + 0.0


def run(change, between=None, kind=Augmented, wrap=None, num_passes=2, **options):
    """Two passes of six steps, in the third of which the data set is changed. What is said."""
    data = kind()
    options = {"num_workers": 2, **options}
    copies = WorkerCopies(DataLoader(data if wrap is None else wrap(data), **options), speaks=True)
    step = 0
    for number in range(num_passes):
        for _ in range(6):
            step += 1
            if step >= copies.next:
                copies.look(step)
            if step % 6 == 3:
                change(data)
        copies.end_pass(step)
        if between is not None and number == 0:
            between(data)


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(worker_copies, "say", lines.append)
    return lines


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (scale, "dataset.scale"),
        (exchange, "dataset.transform"),
        (option, "dataset.options['p']"),
        (target, "dataset.targets"),
        (array, "dataset.array"),
    ],
)
def test_what_was_changed_during_a_pass_is_named_once(said, change, name):
    run(change)
    assert len(said) == 1
    assert f" {name} " in said[0]


@pytest.mark.parametrize(
    ("name", "kind", "num_lines"),
    [
        ("size", WithSettings, 1),  # by the data set
        ("limit", WithSettings, 1),  # by a function that it calls
        ("step", WithSettings, 0),
        ("step", WithAnySettings, 1),  # it may be
    ],
)
def test_a_setting_that_the_data_set_holds_is_named_if_its_code_may_read_it(said, name, kind, num_lines):
    run(setting(name), kind=kind)
    assert len(said) == num_lines


@pytest.mark.parametrize(("name", "num_lines"), [("size", 1), ("step", 0)])
@pytest.mark.parametrize(
    "kind",
    [ByProperty, ByCachedProperty, ByClassMethod, ByStaticMethod, ByNestedFunction, ByText, ByFunctionOfModule],
)
def test_wherever_its_code_reads_a_setting_and_only_there_a_change_counts(said, kind, name, num_lines):
    run(setting(name), kind=kind)
    assert len(said) == num_lines


@pytest.mark.parametrize(("name", "num_lines"), [("size", 1), ("step", 0)])
@pytest.mark.parametrize("make", [Settings, lambda: SimpleNamespace(**vars(Settings()))], ids=["dataclass", "namespace"])
def test_a_setting_that_only_the_collate_fn_reads_counts_too(said, make, name, num_lines):
    settings = make()
    run(setting(name), kind=lambda: Holding(settings), collate_fn=functools.partial(collate, args=settings))
    assert len(said) == num_lines


def test_what_is_inside_of_a_subset_is_named_as_the_script_has_it(said):
    run(scale, wrap=lambda data: Subset(data, [0, 1]))
    assert [" dataset.dataset.scale " in line for line in said] == [True]


@pytest.mark.parametrize(
    ("change", "between", "options"),
    [
        (nothing, None, {}),
        (shared, None, {}),  # workers have the same memory
        (scale, None, {"num_workers": 0}),  # the next sample has it
        (nothing, scale, {}),  # the next pass has new workers
        # whose set_epoch is called in them
        (nothing, scale, {"persistent_workers": True, "kind": WithEpochs}),
    ],
)
def test_a_change_that_reaches_the_samples_or_is_none_is_not(said, change, between, options):
    run(change, between, **options)
    assert said == []


def test_persistent_workers_have_what_there_was_when_they_started(said):
    run(nothing, scale, persistent_workers=True)
    assert len(said) == 1


def test_streams_and_other_ranks_look_at_nothing(said):
    assert WorkerCopies(DataLoader(Numbers(4), num_workers=1), speaks=False).next == float("inf")
    assert WorkerCopies([1, 2], speaks=True).next == float("inf")
