"""What an optimizer keeps in attributes comes back with its state, or is named when a checkpoint is
taken without it."""

import json
import logging
import random
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from lockstep._prepare.registry import registered_adapter
from lockstep._prepare.state_adapters import ATTRIBUTES
from lockstep._state.checkpoint.staging import Staging
from lockstep._state.checkpoint.tree import put_together
from lockstep._state.recovery.run_state import RunState
from lockstep._state.recovery.unresumable import Unresumable

pytestmark = pytest.mark.timeout(60)
INPUTS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Keeping(torch.optim.Optimizer):
    """SGD with a rate that depends on something that it keeps.

    Args:
        start: called with the optimizer, when it is made.
        change: called in each step with the optimizer, the number of a parameter, and the
            parameter; returns the rate.
    """

    def __init__(self, parameters, start, change):
        super().__init__(parameters, {"lr": 0.01})
        self.change = change
        start(self)

    @torch.no_grad()
    def step(self):
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            parameter.sub_(parameter.grad * float(self.change(self, number, parameter)))


class Training:
    def __init__(self, make, *args):
        torch.manual_seed(1)
        self.model = nn.Linear(3, 2)
        self.optimizer = make(self.model.parameters(), *args)
        self.state = RunState()
        for item in (self.model, self.optimizer):
            self.state.keep(item)

    def step(self):
        self.optimizer.zero_grad()
        self.model(INPUTS).square().mean().backward()
        self.optimizer.step()

    def saved(self):
        """What a checkpoint has of the optimizer and of the model, after a journey through the
        bytes of files."""
        files, state = self.state.part(0, 1)
        files = {name: load(save(Staging().copy(part)[0])) for name, part in files.items()}
        weights = files.pop("model.safetensors")
        (tensors,) = files.values()
        return put_together(json.loads(json.dumps(state["objects"])), tensors), weights

    def load(self, saved):
        states, weights = saved
        for adapter, state in zip(self.state.objects, states, strict=True):
            adapter.load_state_dict(state, weights)

    def weights(self):
        return [parameter.tolist() for parameter in self.model.parameters()]


def assert_goes_on_alike(make, *args):
    old, new = Training(make, *args), Training(make, *args)
    for _ in range(3):
        old.step()
    new.load(old.saved())
    for _ in range(4):
        old.step()
        new.step()
        assert new.weights() == old.weights()
    assert not any(old.state.unsavable.values())
    return old, new


def set_to(**values):
    """Attributes of these values, each made by a function of the optimizer."""
    return lambda optimizer: vars(optimizer).update({name: value(optimizer) for name, value in values.items()})


def parameters_of(optimizer):
    return optimizer.param_groups[0]["params"]


def zeros(optimizer):
    return [torch.zeros_like(parameter) for parameter in parameters_of(optimizer)]


def count(optimizer, number, parameter):
    optimizer.t += 1
    return 0.01 * optimizer.t


def first_made_in_a_step(optimizer, number, parameter):
    if not hasattr(optimizer, "seen"):
        optimizer.seen, optimizer.is_warm = [torch.zeros(()), 0], False
    optimizer.seen[0] += 1
    optimizer.is_warm = optimizer.seen[0] > 3
    return optimizer.seen[0] * (0.01 if optimizer.is_warm else 0.02)


def momentum(optimizer, number, parameter):
    return optimizer.momenta[number].mul_(0.9).add_(parameter.grad).norm()


def through_data(optimizer, number, parameter):
    optimizer.momenta[number].data.mul_(0.5).add_(0.1)
    return optimizer.momenta[number].sum()


def by_parameter(optimizer, number, parameter):
    optimizer.momenta[parameter] = optimizer.momenta.get(parameter, 0) + parameter.grad
    return optimizer.momenta[parameter].norm()


def window(optimizer, number, parameter):
    optimizer.last.append(parameter.grad.norm().item())
    return sum(optimizer.last)


def drawn(optimizer, number, parameter):
    names = ("torch", "numpy", "python")
    draws = (lambda g: torch.rand(1, generator=g).item(), lambda g: g.random(), lambda g: g.random())
    return 0.01 * sum(draw(optimizer.generators[name]) for name, draw in zip(names, draws, strict=True))


def of_its_state(optimizer, number, parameter):
    if not optimizer.state[parameter]:
        optimizer.state[parameter]["momentum"] = torch.zeros_like(parameter)
        optimizer.flat.append(optimizer.state[parameter]["momentum"])
    optimizer.flat[number].add_(parameter.grad)
    return optimizer.state[parameter]["momentum"].norm()


def through_its_list(optimizer, number, parameter):
    optimizer.mine.reverse()
    optimizer.mine[0].mul_(1.01)
    return 0.01


def two_places(optimizer, number, parameter):
    optimizer.first = optimizer.second[0] = (
        optimizer.first + 1 if optimizer.first is not optimizer.second[0] else optimizer.first
    )
    optimizer.first.mul_(1.5)
    return 0.001 * optimizer.second[0].sum()


def from_one_to_several(optimizer, number, parameter):
    # the same tensor at first
    optimizer.parts = [part + i for i, part in enumerate(optimizer.parts)]
    return 0.001 * sum(part.sum() for part in optimizer.parts)


def array(optimizer, number, parameter):
    optimizer.table[number] += float(parameter.grad.norm())
    return optimizer.table.sum()


def many(optimizer, number, parameter):
    optimizer.counter[number] += 1
    optimizer.sums["a"] += 0.5
    optimizer.pair = (optimizer.pair[1], optimizer.pair[0] + 1)
    optimizer.order.move_to_end(next(iter(optimizer.order)))
    optimizer.words = optimizer.words + "a"
    optimizer.names.add(len(optimizer.words))
    return 0.001 * (optimizer.counter[0] + optimizer.sums["a"] + optimizer.pair[0] + next(iter(optimizer.order.values())))


def grows(optimizer, number, parameter):
    optimizer.history = torch.cat([optimizer.history, parameter.grad.norm()[None]])
    return optimizer.history.sum()


KEPT = {
    "a number": (set_to(t=lambda o: 0), count),
    "what a step makes first": (set_to(), first_made_in_a_step),
    "tensors in a list": (set_to(momenta=zeros), momentum),
    "tensors written through data": (set_to(momenta=zeros), through_data),
    "a dict by parameter": (set_to(momenta=lambda o: {}), by_parameter),
    "a deque": (set_to(last=lambda o: deque(maxlen=3)), window),
    "generators": (
        set_to(
            generators=lambda o: {
                "torch": torch.Generator().manual_seed(3),
                "numpy": np.random.default_rng(3),
                "python": random.Random(3),
            }
        ),
        drawn,
    ),
    "tensors of its state": (set_to(flat=lambda o: []), of_its_state),
    "its parameters": (set_to(mine=lambda o: list(parameters_of(o))), through_its_list),
    "one tensor in two places": (set_to(first=lambda o: torch.ones(2), second=lambda o: [None]), two_places),
    "one tensor that becomes several": (set_to(parts=lambda o: [torch.ones(2)] * 3), from_one_to_several),
    "an array": (set_to(table=lambda o: np.zeros(2)), array),
    "containers of all kinds": (
        set_to(
            counter=lambda o: Counter(),
            sums=lambda o: defaultdict(float),
            pair=lambda o: (1, 2),
            order=lambda o: OrderedDict(a=1, b=2, c=3),
            words=lambda o: "",
            names=lambda o: set(),
        ),
        many,
    ),
    "a tensor that grows": (set_to(history=lambda o: torch.zeros(0)), grows),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_steps_change_comes_back(name):
    assert_goes_on_alike(Keeping, *KEPT[name])


def test_lists_and_tensors_are_filled_again_where_they_are():
    start, change = KEPT["tensors in a list"]
    old, new = Training(Keeping, start, change), Training(Keeping, start, change)
    momenta, first = new.optimizer.momenta, new.optimizer.momenta[0]
    old.step()
    new.load(old.saved())
    assert new.optimizer.momenta is momenta
    assert momenta[0] is first
    assert torch.equal(first, old.optimizer.momenta[0])


def test_what_no_step_has_changed_is_what_the_constructor_makes_of_its_arguments():
    def start(rate):
        return set_to(rate=lambda o: rate, table=lambda o: torch.full((2,), rate), t=lambda o: 0)

    def change(optimizer, number, parameter):
        return count(optimizer, number, parameter) * optimizer.rate * optimizer.table[0]

    old, new = Training(Keeping, start(0.5), change), Training(Keeping, start(0.25), change)
    old.step()
    saved = old.saved()
    assert saved[0][1][ATTRIBUTES] == {"t": 2}
    new.load(saved)
    assert (new.optimizer.rate, new.optimizer.table.tolist(), new.optimizer.t) == (0.25, [0.25, 0.25], 2)


def test_an_optimizer_that_is_registered_keeps_its_own_too():
    old, new = (Training(Keeping, *KEPT["tensors in a list"]).optimizer for _ in range(2))
    state, parameter = RunState(), parameters_of(old)[0]
    state.register("mine", old)
    parameter.grad = torch.ones_like(parameter)
    parameters_of(old)[1].grad = torch.zeros(2)
    old.step()
    files, value = state.part(0, 1)
    (tensors,) = files.values()
    registered_adapter("mine", new).load_state_dict(put_together(value["registered"], tensors)["mine"])
    assert torch.equal(new.momenta[0], torch.ones_like(parameter))


@pytest.mark.parametrize("extra", ["momenta", "table"])
@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_may_differ_in_attributes_and_the_files_are_whole(rank, extra):
    start = set_to(momenta=zeros, table=lambda o: torch.zeros(5))
    ranks = [Training(Keeping, start, momentum) for _ in range(2)]
    for each in ranks:
        each.step()
    optimizer = ranks[rank].optimizer
    vars(optimizer)[extra] = [torch.ones(7), torch.ones(9)]  # the loss of a rank's own shards, say
    names, values = [], []
    for number, each in enumerate(ranks):
        files, value = each.state.part(number, 2)
        names += [name for file, tensors in files.items() if file.startswith("state") for name in tensors]
        values.append(value)
    assert len(names) == len(set(names))
    assert set(names) == set(tensors_named_in(values[0]["objects"]))


def tensors_named_in(value):
    if isinstance(value, dict):
        yield from [value["$tensor"]] if "$tensor" in value else []
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from tensors_named_in(item)


class Outer(Keeping):
    """Keeps another in attributes, whose names begin alike, and in a list."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.inner = Keeping(parameters, *KEPT["a number"])
        self.inner_too = Keeping(parameters, *KEPT["a deque"])
        self.more = [Keeping(parameters, *KEPT["tensors in a list"])]
        super().__init__(parameters, *KEPT["a number"])
        self.inner.outer = self

    def step(self):
        super().step()
        self.inner.step()
        self.inner_too.step()
        self.more[0].step()


def test_optimizers_in_an_optimizer_keep_theirs():
    assert_goes_on_alike(Outer)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.Rprop])
def test_nothing_is_added_to_the_state_of_pytorchs_own(kind):
    training = Training(lambda parameters: kind(parameters, lr=0.01))
    schedule = torch.optim.lr_scheduler.StepLR(training.optimizer, 1)
    training.step()
    schedule.step()
    assert ATTRIBUTES not in training.saved()[0][1]


# What is not kept


class Stats:
    def __init__(self):
        self.mean, self.num = torch.zeros(2), 0


class Table(dict):
    """Of a kind that might have a state beside its items."""


class Model(nn.Module):
    def __init__(self, parameters):
        super().__init__()
        self.parameters_of_another = list(parameters)


def change_stats(optimizer, number, parameter):
    optimizer.stats.mean += 1
    optimizer.stats.num += 1
    return 0.01 * optimizer.stats.num


def change_table(optimizer, number, parameter):
    optimizer.table[number] = optimizer.table.get(number, 0) + 1
    return 0.01 * optimizer.table[number]


def change_by_module(optimizer, number, parameter):
    optimizer.factors[optimizer.module] = optimizer.factors.get(optimizer.module, 0) + 1
    return 0.01


def change_by_factory(optimizer, number, parameter):
    optimizer.by_factory[number] += 1
    return 0.01 * optimizer.by_factory[number]


LEFT_OUT = {
    "stats": (set_to(stats=lambda o: Stats()), change_stats),
    "table": (set_to(table=lambda o: Table()), change_table),
    "by_factory": (set_to(by_factory=lambda o: defaultdict(lambda: 0)), change_by_factory),
    "factors": (set_to(module=lambda o: nn.Linear(1, 1), factors=lambda o: {}), change_by_module),
    "sparse": (set_to(sparse=lambda o: None), lambda o, n, p: setattr(o, "sparse", p.to_sparse()) or 0.01),
}


def remarks(training, capfd):
    """What is said of a checkpoint, and of the next."""
    unresumable, said = Unresumable(training.state), []
    for step in range(2):
        training.step()
        training.saved()
        unresumable.warn(step)
        said.append([line for line in capfd.readouterr().err.splitlines() if "WARNING" in line])
    return said


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_checkpoint_cannot_hold_is_named_once_with_its_class(name, capfd):
    first, second = remarks(Training(Keeping, *LEFT_OUT[name]), capfd)
    [line] = first
    assert f"Keeping changes `{name}` (a " in line
    assert f"team.register({name!r}, optimizer.{name})" in line
    assert second == []


class Stating(Keeping):
    """Says itself what its state is, but for its count."""

    def state_dict(self):
        return {**super().state_dict(), "momenta": self.momenta}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.momenta = state["momenta"]


def stated_and_count(optimizer, number, parameter):
    optimizer.is_warm = True
    return momentum(optimizer, number, parameter) + optimizer.t * 0


def test_a_class_that_says_its_state_is_believed_and_what_it_leaves_out_is_named(capfd):
    start = set_to(momenta=zeros, t=lambda o: 7.5, is_warm=lambda o: False, _momenta=lambda o: 0)
    assert_goes_on_alike(Stating, start, stated_and_count)
    assert remarks(Training(Stating, start, stated_and_count), capfd) == [[], []]

    def counts_too(optimizer, number, parameter):
        optimizer.t += 1
        return stated_and_count(optimizer, number, parameter)

    training = Training(Stating, start, counts_too)
    [first], second = remarks(training, capfd)
    assert "Stating changes `t` (a float)" in first
    assert second == []
    assert ATTRIBUTES not in training.saved()[0][1]


def nothing_of_it_counts(optimizer, number, parameter):
    optimizer.logger.setLevel(logging.INFO + optimizer.t % 2)
    optimizer.closure = lambda: None
    optimizer.circle.append(optimizer.circle)
    optimizer.stats.num += 1
    return count(optimizer, number, parameter)


def test_functions_models_loggers_and_what_is_registered_are_passed_over(capfd):
    stats = Stats()
    start = set_to(
        t=lambda o: 0,
        logger=lambda o: logging.getLogger("of an optimizer"),
        closure=lambda o: None,
        model=lambda o: Model(parameters_of(o)),
        models=lambda o: [nn.Linear(1, 1)],
        schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        circle=lambda o: [],
        generator=lambda o: torch.default_generator,
        stats=lambda o: stats,
    )
    stats.state_dict, stats.load_state_dict = lambda: {"num": stats.num}, lambda state: None
    training = Training(Keeping, start, nothing_of_it_counts)
    training.state.register("stats", stats)
    assert remarks(training, capfd) == [[], []]
