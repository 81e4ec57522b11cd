"""Optimizers step on the parameters that took the place of theirs, wherever they keep them."""

import pytest
import torch
from codes import raises
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from lockstep._base.errors import UsageError
from lockstep._prepare.remap import remap

pytestmark = pytest.mark.timeout(20)


class Models:
    """Parameters that are replaced, and one that is not."""

    def __init__(self):
        self.before = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
        self.kept = nn.Parameter(torch.zeros(2))
        self.after = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
        self.replaced = dict(zip(self.before, self.after, strict=True))

    def groups(self, parameters=None):
        first, *others = self.before if parameters is None else parameters
        return [{"params": [first, self.kept], "lr": 0.5}, {"params": others, "weight_decay": 0.25}]


class Wrapping(torch.optim.Optimizer):
    """An optimizer that hands its steps on to others, with groups of its own or theirs."""

    def __init__(self, groups, *inner, place, shared):
        super().__init__(groups, {"lr": 0.1, "weight_decay": 0.0})
        self.inner = {"attribute": lambda: inner[0], "list": lambda: [*inner], "tuple": lambda: inner}.get(
            place, lambda: dict(enumerate(inner))
        )()
        if shared:
            self.param_groups = inner[0].param_groups

    def step(self):
        pass


def plain(models):
    return torch.optim.SGD(models.groups(), lr=0.1, momentum=0.9)


def nested(models, place, depth, shared):
    """An optimizer, and those in it to this depth."""
    if depth == 0:
        one = plain(models)
        return one, [one]
    inner = [nested(models, place, depth - 1, shared) for _ in range(1 if place == "attribute" else 2)]
    one = Wrapping(models.groups(), *(each for each, _ in inner), place=place, shared=shared)
    within = [each for _, all_in in inner for each in all_in]
    for each in within:  # as some refer to those around them
        each.around = [*getattr(each, "around", ()), one]
    return one, [one, *within]


NESTED = [
    (place, depth, shared) for place in ("attribute", "list", "tuple", "dict") for depth in (1, 2) for shared in (0, 1)
]


@pytest.mark.parametrize(("place", "depth", "shared"), [("", 0, 0), *NESTED])
def test_each_optimizer_steps_on_the_new_parameters_with_the_options_that_it_had(place, depth, shared):
    models = Models()
    optimizer, everyone = nested(models, place, depth, shared)
    lists = [[group["params"] for group in each.param_groups] for each in everyone]
    for each in everyone:
        each.own = {"weights": [*models.before], "of others": (models.kept,)}
        each.untouched = [models.kept]
    untouched = [each.untouched for each in everyone]
    remap(optimizer, models.replaced)
    first, *others = models.after
    for each, own_lists, same in zip(everyone, lists, untouched, strict=True):
        found = [group["params"] for group in each.param_groups]
        assert [list(map(id, one)) for one in found] == [[id(first), id(models.kept)], list(map(id, others))]
        assert all(one is other for one, other in zip(found, own_lists, strict=True)), "the script may have the list"
        assert [(group["lr"], group["weight_decay"]) for group in each.param_groups] == [(0.5, 0.0), (0.1, 0.25)]
        assert list(map(id, each.own["weights"])) == list(map(id, models.after))
        assert each.own["of others"][0] is models.kept
        assert each.untouched is same


KEPT = {
    "a parameter": (lambda new: new[0], lambda found: [found]),
    "a list": (lambda new: [*new], list),
    "a tuple in a dict": (lambda new: {"a": (1, tuple(new))}, lambda found: found["a"][1]),
    "keys": (dict.fromkeys, list),
    "values by key": (lambda new: {new[0]: [new[1]]}, lambda found: [*found, *found[next(iter(found))]]),
}


@pytest.mark.parametrize("how", KEPT)
def test_parameters_in_attributes_are_the_new_ones(how):
    keep, flat = KEPT[how]
    models = Models()
    optimizer = plain(models)
    optimizer.own, optimizer.circle = keep(models.before), [models.before[0]]
    optimizer.circle.append(optimizer.circle)
    remap(optimizer, models.replaced)
    assert list(map(id, flat(optimizer.own))) == list(map(id, flat(keep(models.after))))


@pytest.mark.parametrize(("place", "depth", "shared"), [("", 0, 0), *NESTED])
def test_one_that_has_state_of_replaced_parameters_is_refused_wherever_it_is(place, depth, shared):
    _, everyone = nested(Models(), place, depth, shared)
    for number in range(len(everyone)):
        models = Models()
        optimizer, everyone = nested(models, place, depth, shared)
        everyone[number].state[models.kept] = {"momentum_buffer": torch.ones(2)}
        remap(optimizer, {})
        everyone[number].state[models.before[2]] = {"momentum_buffer": torch.ones(2)}
        with raises(UsageError, "optimizer-stepped-before-prepare"):
            remap(optimizer, models.replaced)
        parameters = [id(p) for each in everyone for group in each.param_groups for p in group["params"]]
        assert set(parameters) == {*map(id, models.before), id(models.kept)}, "some are replaced"


def cut(parameter):
    """A parameter that is cut over the ranks, of which there is one."""
    mesh = DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    whole = {"shape": parameter.shape, "stride": parameter.stride()}
    return nn.Parameter(DTensor.from_local(parameter.detach(), mesh, [Shard(0)], run_check=False, **whole))


@pytest.mark.parametrize(("place", "depth", "shared"), [("", 0, 0), *NESTED])
def test_one_that_computes_with_whole_tensors_is_refused_for_parts_wherever_it_is(place, depth, shared):
    for number in range(len(nested(Models(), place, depth, shared)[1])):
        models = Models()
        optimizer, everyone = nested(models, place, depth, shared)
        everyone[number].__class__ = type("Whole", (torch.optim.LBFGS,), {})
        with raises(UsageError, "optimizer-not-elementwise"):
            remap(optimizer, {parameter: cut(parameter) for parameter in models.before})
        remap(optimizer, models.replaced)
