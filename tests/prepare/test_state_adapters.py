"""Promises of what a checkpoint holds of an object: a new one that takes it goes on as the old one
would have, to the bit."""

import json
import math
from collections import OrderedDict, deque

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from lockstep._prepare.registry import adapter_of
from lockstep._prepare.scaling import LossScaling
from lockstep._prepare.state_adapters import innermost
from lockstep._state.checkpoint.staging import Staging
from lockstep._state.checkpoint.tree import put_together, take_apart
from lockstep._state.recovery.resuming import has_stepped

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # of torch's own compiler
]


@pytest.fixture(autouse=True)
def _directory_of_the_compiler(monkeypatch, tmp_path):
    # torch sets it at an optimizer's first step, for good
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def in_files(thing):
    """An object's state and weights, after a journey through the bytes of files."""
    weights = adapter_of(thing).weights()
    value, tensors = take_apart(adapter_of(thing).state_dict(), "rest")
    files = [load(save(Staging().copy(part)[0])) for part in (weights or {}, tensors)]
    return put_together(json.loads(json.dumps(value)), files[1]), None if weights is None else files[0]


def bits(tensor):
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        return ("sparse", tensor.is_coalesced(), bits(tensor._indices()), bits(tensor._values()), tuple(tensor.shape))
    data = tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    return (str(tensor.dtype), tuple(tensor.shape), data.numpy().tobytes() if data.numel() else b"")


def look_of(model):
    """All that a model is, seen from outside."""
    return {
        "parameters": {
            name: (bits(p), p.requires_grad, None if p.grad is None else bits(p.grad), p.stride())
            for name, p in model.named_parameters()
        },
        "buffers": {name: bits(buffer) for name, buffer in model.named_buffers()},
        "saved": {name: bits(v) if isinstance(v, torch.Tensor) else v for name, v in model.state_dict().items()},
        "training": {name: module.training for name, module in model.named_modules()},
    }


# Models


class Odd(nn.Module):
    """One of everything that a model can have beside plain weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("made_later", None)
        self.register_buffer("hidden_made_later", None, persistent=False)
        self.register_buffer("hidden", torch.zeros(3), persistent=False)
        self.register_buffer("grows", torch.zeros(1), persistent=False)
        self.register_buffer("changes_its_type", torch.zeros(2), persistent=False)
        self.register_buffer("expanded", torch.arange(3.0).expand(2, 3), persistent=False)
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("transposed", torch.zeros(2, 3).t())
        self.counts = {"calls": 0}

    def get_extra_state(self):
        return self.counts

    def set_extra_state(self, state):
        self.counts = state

    def forward(self, batch):
        self.counts["calls"] += 1
        self.hidden += 1
        self.transposed += torch.rand(3, 2)
        self.made_later = torch.rand(2) if self.made_later is None else self.made_later + 1
        self.hidden_made_later = torch.rand(2, 2) if self.hidden_made_later is None else self.hidden_made_later + 1
        self.grows = torch.cat([self.grows, torch.rand(1)])
        self.changes_its_type = self.changes_its_type.bfloat16() + 1
        self.register_buffer("of_nowhere", torch.rand(2), persistent=False)
        self.register_parameter("no", None)
        return self.head(self.frozen(self.norm(self.embedding(batch))))


class LeavesOut(nn.Module):
    """Its state dict holds only what is small, as those of adapters do."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, batch):
        return self.small(self.large(batch))

    def state_dict(self, *args, **options):
        return {name: value for name, value in super().state_dict(*args, **options).items() if "small" in name}

    def load_state_dict(self, state, strict=True):
        return super().load_state_dict(state, strict=False)


def averaged():
    return AveragedModel(Odd(), multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=False)


def convolution():
    return nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)


TOKENS, VECTORS = torch.tensor([0, 3, 3, 1]), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
MODELS = {
    "of everything": (Odd, TOKENS),
    "compiled": (lambda: torch.compile(LeavesOut(), backend="eager"), VECTORS),
    "with weights left out": (LeavesOut, VECTORS),
    "averaged": (averaged, TOKENS),
    "in channels last": (convolution, IMAGES),
    "parametrized": (lambda: parametrizations.spectral_norm(parametrizations.weight_norm(nn.Linear(3, 3))), VECTORS),
    "recurrent": (lambda: nn.GRU(3, 2, num_layers=2), VECTORS),
    "with sparse gradients": (lambda: nn.Embedding(5, 4, sparse=True), TOKENS),
    "of half precision": (lambda: nn.Linear(3, 3).bfloat16(), VECTORS.bfloat16()),
    "complex": (lambda: nn.Linear(3, 3, dtype=torch.complex64), VECTORS.to(torch.complex64)),
}


def run(model, batch):
    """A forward and a backward pass, with all that they change."""
    torch.manual_seed(7)
    result = model(batch)
    result = result[0] if isinstance(result, tuple) else result
    result.abs().sum().backward()


@pytest.mark.parametrize("name", MODELS)
def test_a_new_model_becomes_what_the_old_one_was_and_goes_on_alike(name):
    make, batch = MODELS[name]
    torch.manual_seed(1)
    old = make()
    for _ in range(2):  # the gradients of the first are still there in the second
        run(old, batch)
    next(iter(old.children()), old).eval()
    torch.manual_seed(2)
    new = make()
    assert look_of(new) != look_of(old)
    adapter_of(new).load_state_dict(*in_files(old))
    assert look_of(new) == look_of(old)
    for model in (old, new):
        run(model, batch)
    assert look_of(new) == look_of(old)
    for module in new.modules():  # and none of it has become a plain attribute
        assert not any(isinstance(value, torch.Tensor) for value in vars(module).values())


def test_what_was_frozen_or_thawed_is_so_again_and_gradients_are_as_they_were():
    def make():
        return nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), nn.Embedding(3, 2, sparse=True)])

    old, new = make(), make()
    old[0].requires_grad_(False)
    old[1].requires_grad_(True)
    for model in (old, new):
        model[2](torch.tensor([1, 1])).sum().backward()
    old[2].weight.grad = old[2].weight.grad.coalesce()
    new[1].weight.grad = torch.ones(2, 2)
    adapter_of(new).load_state_dict(*in_files(old))
    assert look_of(new) == look_of(old)


# Optimizers, schedules and scalers

OPTIMIZERS = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]
OPTIONS = {"SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True, "lr": torch.tensor(0.01)}, "LBFGS": {"max_iter": 2}}


class Warmup:
    """As a schedule with a state of its own: what LambdaLR keeps is its dictionary."""

    def __init__(self):
        self.num_steps = 3

    def __call__(self, epoch):
        return min(1.0, (epoch + 1) / self.num_steps)


def half(_):
    return 0.5


# By the class that it is named for, and a word.
SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, half),
    "LambdaLR, with a state": lambda o: lr_scheduler.LambdaLR(o, Warmup()),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, half),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 2, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
    "LinearLR": lr_scheduler.LinearLR,
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
    "CyclicLR, by a function": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, scale_fn=half),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "OneCycleLR, linear": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 12, anneal_strategy="linear", three_phase=True),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.CosineAnnealingLR(o, 9)], milestones=[3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(o, 2), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: SWALR(o, 0.01, anneal_epochs=4),
}


class Training:
    """A model, what trains it, and its steps so far."""

    def __init__(self, optimizer, schedule=None, scaler=None, model=None, dtype=torch.float32):
        sparse = optimizer is torch.optim.SparseAdam
        bias = optimizer is not torch.optim.Muon  # which takes matrices only
        torch.manual_seed(1)
        model = model or (nn.Embedding(4, 3, sparse=True) if sparse else nn.Linear(3, 2, bias=bias))
        self.model, self.batch = model.to(dtype), TOKENS if sparse else VECTORS.to(dtype)
        self.optimizer = optimizer(self.model.parameters(), **OPTIONS.get(optimizer.__name__, {}))
        self.schedule = schedule and schedule(self.optimizer)
        self.scaler = scaler and scaler()
        self.losses = []

    def things(self):
        return [thing for thing in (self.model, self.optimizer, self.schedule, self.scaler) if thing is not None]

    def step(self):
        def closure():
            self.optimizer.zero_grad()
            loss = self.model(self.batch).pow(2).mean()
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            return loss

        if self.scaler is None:
            self.losses.append(self.optimizer.step(closure).item())
        else:
            self.losses.append(closure().item())
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if isinstance(self.schedule, lr_scheduler.ReduceLROnPlateau):
            self.schedule.step(self.losses[-1])
        elif self.schedule is not None:
            self.schedule.step()

    def look(self):
        return look_of(self.model), [group["lr"] for group in self.optimizer.param_groups], self.losses[-1]


def assert_goes_on_alike(make):
    old, new = make(), make()
    for _ in range(3):
        old.step()
    for mine, its in zip(old.things(), new.things(), strict=True):
        adapter_of(its).load_state_dict(*in_files(mine))
    for _ in range(4):
        old.step()
        new.step()
        assert new.look() == old.look()
    assert (
        take_apart([adapter_of(thing).state_dict() for thing in new.things()], "")[0]
        == (take_apart([adapter_of(thing).state_dict() for thing in old.things()], "")[0])
    )
    return new


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_every_optimizer_of_pytorch_goes_on_alike(kind):
    assert_goes_on_alike(lambda: Training(kind))


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_an_optimizer_has_stepped_once_it_has_made_a_step(kind):
    training = Training(kind)
    assert not any(map(has_stepped, training.optimizer.state.values()))
    training.step()
    assert all(map(has_stepped, training.optimizer.state.values()))


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_go_on_alike(name):
    assert_goes_on_alike(lambda: Training(torch.optim.SGD, SCHEDULES[name]))


def test_no_schedule_of_pytorch_is_forgotten_here():
    there = {name for name in vars(lr_scheduler) if name[0] != "_" and isinstance(getattr(lr_scheduler, name), type)}
    schedules = {name for name in there if name.endswith(("LR", "Scheduler", "Restarts", "Plateau"))} - {"LRScheduler"}
    assert schedules == {name.partition(",")[0] for name in SCHEDULES} - {"SWALR"}


def test_a_scaler_goes_on_alike():
    new = assert_goes_on_alike(
        lambda: Training(torch.optim.AdamW, scaler=lambda: torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2))
    )
    assert new.scaler.get_scale() > 4


def test_an_overflow_that_no_step_was_skipped_for_is_remembered():
    old, new = ([nn.Parameter(torch.ones(1)), LossScaling("cpu")] for _ in range(2))
    optimizers = []
    for parameter, scaling in (old, new):
        optimizers += [torch.optim.SGD([parameter], lr=1.0)]
        scaling.attach(optimizers[-1])
    old[0].grad = torch.tensor([torch.inf])
    old[1].unscale([old[0]])
    adapter_of(new[1]).load_state_dict(*in_files(old[1]))
    new[0].grad = torch.ones(1)
    optimizers[1].step()
    assert new[0].item() == 1.0
    optimizers[1].step()
    assert new[0].item() == 0.0


def test_an_optimizers_state_keeps_its_layout_in_memory():
    new = assert_goes_on_alike(lambda: Training(torch.optim.Adam, model=ConvolutionOfVectors()))
    state = new.optimizer.state[new.model.convolution.weight]
    assert state["exp_avg"].is_contiguous(memory_format=torch.channels_last)
    assert not state["exp_avg"].is_contiguous()


class ConvolutionOfVectors(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 2, padding=1).to(memory_format=torch.channels_last)

    def forward(self, batch):
        return self.convolution(batch[:, :, None, None])


class Outer(torch.optim.Optimizer):
    """An optimizer around others, as of sharpness-aware minimization, which are no part of its
    state."""

    def __init__(self, parameters):
        parameters = list(parameters)
        self.momentum = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        self.more = [torch.optim.Adam(parameters[:1], lr=0.1)]
        super().__init__(self.momentum.param_groups, {})
        self.param_groups = self.momentum.param_groups

    def step(self, closure):
        loss = closure()
        self.momentum.step()
        self.more[0].step()
        return loss


def test_optimizers_in_an_optimizer_go_on_too():
    assert_goes_on_alike(lambda: Training(Outer))


def test_what_an_outer_optimizer_saves_of_an_inner_one_is_saved_once():
    inner = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1, momentum=0.9)
    outer = torch.optim.SGD(inner.param_groups[0]["params"], lr=0.1)
    outer.inner, outer.state = inner, inner.state
    inner.param_groups[0]["params"][0].grad = torch.ones(2, 3)
    inner.step()
    tensors = take_apart(adapter_of(outer).state_dict(), "")[1]
    assert len(tensors) == 1


def test_an_optimizer_may_keep_a_number_under_a_name_in_its_state():
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    optimizer.state["num_restarts"] = 5
    state = adapter_of(optimizer).state_dict()
    optimizer.state["num_restarts"] = 0
    adapter_of(optimizer).load_state_dict(state)
    assert optimizer.state["num_restarts"] == 5


class OfSecondFormat(nn.Module):
    """A layer that multiplies what it finds by 10 if that is of the first format."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def _load_from_state_dict(self, state, prefix, metadata, *args):
        if metadata.get("version", 1) < 2:
            state[prefix + "weight"] *= 10
        super()._load_from_state_dict(state, prefix, metadata, *args)


def test_a_layer_finds_the_version_of_its_format():
    model = nn.Sequential(OfSecondFormat())
    adapter_of(model).load_state_dict(*in_files(model))
    assert model[0].weight.tolist() == [1.0, 1.0]


class WithMasters(torch.optim.Optimizer):
    """SGD that adds up in float32, whatever the parameters are."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    def step(self, closure):
        loss = closure()
        for parameter in self.param_groups[0]["params"]:
            master = self.state[parameter].setdefault("master", parameter.detach().float())
            parameter.data.copy_(master.sub_(parameter.grad.float(), alpha=0.01))
        return loss


def test_float32_masters_of_16_bit_parameters_stay_what_they_are():
    new = assert_goes_on_alike(lambda: Training(WithMasters, dtype=torch.bfloat16))
    assert {state["master"].dtype for state in new.optimizer.state.values()} == {torch.float32}


class OfMany(torch.optim.Optimizer):
    """SGD whose state for a parameter has values of many kinds, of which each counts in its
    steps."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01, "rates": [0.01, None], "seen": {}})
        self.around = Around(self)

    def step(self, closure):
        loss = closure()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state.update(last=deque(maxlen=2), word="", pair=(0, [torch.zeros(1)]), nested=OrderedDict(sum=None))
            state["last"].append(parameter.grad.clone().double())
            state["word"] += "a"
            state["pair"] = (state["pair"][0] + 1, [state["pair"][1][0] + 0.1])
            state["nested"]["sum"] = sum(state["last"])
            rate = self.param_groups[0]["rates"][0] * len(state["word"]) / (state["pair"][0] + state["pair"][1][0])
            parameter.data.sub_(rate * state["nested"]["sum"].to(parameter.dtype))
        self.param_groups[0]["seen"][len(state["word"])] = loss.item()
        self.param_groups[0]["rates"][1] = loss.item()
        return loss


class ByRule(torch.optim.Optimizer):
    """SGD by functions that are in its groups."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01, "rule": self.descend, "scale": [torch.square, math.sqrt]})

    def descend(self, parameter, group):
        parameter.data.sub_(parameter.grad, alpha=group["scale"][1](group["lr"]))

    def step(self, closure):
        loss = closure()
        for group in self.param_groups:
            group["lr"] *= 0.9
            for parameter in group["params"]:
                group["rule"](parameter, group)
        return loss


def test_functions_in_the_groups_of_an_optimizer_stay_those_that_are_there():
    new = assert_goes_on_alike(lambda: Training(ByRule))
    [group] = new.optimizer.param_groups
    assert group["rule"].__self__ is new.optimizer
    assert adapter_of(new.optimizer).options() == {"lr": group["lr"]}


class Around(torch.optim.Optimizer):
    """Knows the optimizer that knows it."""

    def __init__(self, inner):
        super().__init__(inner.param_groups[0]["params"], {"lr": 0.01})
        self.inner = inner


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_containers_in_an_optimizers_state_stay_what_they_are_also_where_optimizers_know_each_other(dtype):
    new = assert_goes_on_alike(lambda: Training(OfMany, dtype=dtype))
    for state in new.optimizer.state.values():
        assert state["last"].maxlen == len(state["last"]) == 2
        assert state["last"][0].dtype == torch.float64
        assert (state["word"], type(state["nested"])) == ("a" * 7, OrderedDict)


def test_options_are_those_that_the_script_gave_whatever_steps_have_put_into_them():
    training = Training(OfMany)
    adapter = adapter_of(training.optimizer)
    before = repr(adapter.options_at_birth)
    training.step()
    assert repr(adapter.options()) != before
    assert repr(adapter.options_at_birth) == before


# What must be the same, and what may be changed


def test_each_object_has_a_kind_and_lines_that_tell_it_from_another():
    model = Odd()
    optimizer = torch.optim.SGD([{"params": model.embedding.parameters()}, {"params": model.norm.parameters()}])
    schedule, scaler = lr_scheduler.StepLR(optimizer, 1), torch.amp.GradScaler("cpu")
    things = [model, AveragedModel(model), optimizer, schedule, lr_scheduler.ReduceLROnPlateau(optimizer), scaler]
    assert [adapter_of(thing).kind for thing in things] == [
        "model",
        "average",
        "optimizer",
        "schedule",
        "schedule",
        "scaler",
    ]
    lines = adapter_of(model).describe()
    assert lines[0] == "embedding.weight of shape (5, 4), float32"
    assert len(lines) == 5
    run(model, TOKENS)
    assert (
        adapter_of(model).describe()
        == adapter_of(torch.compile(model)).describe()
        == adapter_of(AveragedModel(model)).describe()
        == lines
    )
    assert innermost(torch.compile(model)) is model
    assert type(innermost(AveragedModel(torch.compile(model)))) is Odd
    assert adapter_of(optimizer).describe() == ["group 1 of 1 parameters", "group 2 of 2 parameters"]
    assert [adapter_of(thing).describe() for thing in things[3:]] == [[], [], []]


def test_what_a_model_has_lost_or_got_is_named_and_buffers_that_come_back_by_themselves_are_not():
    model = Odd()
    adapter = adapter_of(model)
    run(model, TOKENS)
    assert adapter.changes() == []
    model.register_buffer("new", torch.zeros(1))
    del model.empty, model.hidden
    assert adapter.changes() == ["the buffer `empty` is missing"]
    model.head.weight = nn.Parameter(torch.ones(5, 4))
    model.frozen = nn.Identity()
    assert [line.split("`")[1] for line in adapter.changes()] == ["head.weight", "frozen.weight", "frozen.bias", "empty"]


def change(thing, was, is_now, names):
    """Give an object these options of now, where its checkpoint had others."""
    content = adapter_of(thing)
    content.options_at_birth = is_now
    content.apply_options(names, {name: repr(value) for name, value in was.items()})


def test_options_that_were_changed_take_the_place_of_the_saved_ones():
    model = nn.Linear(2, 2)
    one = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    assert {"lr": 0.5, "momentum": 0.9}.items() <= adapter_of(one).options().items()
    change(one, adapter_of(one).options(), {"lr": 2.0, "momentum": 0.0}, ["lr"])
    assert (one.param_groups[0]["lr"], one.param_groups[0]["momentum"]) == (2.0, 0.9)
    groups = [{"params": model.weight, "lr": torch.tensor(0.25)}, {"params": model.bias, "lr": 0.125}]
    two = torch.optim.Adam(groups, foreach=False)
    assert {"lr of group 1": 0.25, "lr of group 2": 0.125}.items() <= adapter_of(two).options().items()
    assert not any("params" in name for name in adapter_of(two).options())
    learning_rate = two.param_groups[0]["lr"]
    change(
        two, adapter_of(two).options(), {"lr of group 1": 3.0, "eps of group 2": 4.0}, ["lr of group 1", "eps of group 2"]
    )
    assert two.param_groups[0]["lr"] is learning_rate  # a graph may hold it
    assert [(group["lr"], group["eps"]) for group in two.param_groups] == [(3.0, 1e-8), (0.125, 4.0)]
    assert adapter_of(model).options() == {}


def test_groups_and_rates_that_the_script_holds_are_those_of_the_optimizer_after_a_resume():
    model = nn.Linear(2, 2)

    def make(rate):
        groups = [{"params": model.weight, "lr": torch.tensor(rate)}, {"params": model.bias, "lr": rate}]
        return torch.optim.Adam(groups, foreach=False)

    old, new = make(0.5), make(0.25)
    first, second = groups = new.param_groups
    rate = first["lr"]
    adapter_of(new).load_state_dict(*in_files(old))
    assert (rate.item(), first["lr"].item(), second["lr"]) == (0.5, 0.5, 0.5)
    second["lr"] = 2.0
    groups[0]["lr"].fill_(4.0)
    assert [float(group["lr"]) for group in new.param_groups] == [4.0, 2.0]


def test_a_rate_moved_by_a_schedule_is_scaled_as_its_beginning_was():
    def make(lr, gamma):
        optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=lr)
        return optimizer, lr_scheduler.StepLR(optimizer, 2, gamma)

    old, new = make(0.5, 0.1), make(0.25, 0.2)
    was, is_now = [adapter_of(thing).options() for thing in old], [adapter_of(thing).options() for thing in new]
    for _ in range(3):
        old[0].step()
        old[1].step()
    for number, (mine, its) in enumerate(zip(old, new, strict=True)):
        adapter_of(its).load_state_dict(*in_files(mine))
        changed = [name for name in was[number] if was[number][name] != is_now[number][name]]
        change(its, was[number], is_now[number], changed)
    assert new[0].param_groups[0]["lr"] == pytest.approx(0.025)
    new[0].step()
    new[1].step()
    assert new[0].param_groups[0]["lr"] == pytest.approx(0.005)
