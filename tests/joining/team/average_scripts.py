"""Scripts with averages of weights, and with tensors that change and are none. Each function of a
table is one: given the model, it returns what its loop calls after each step, and (or None) what it
calls after each epoch."""

import copy
from collections import deque

import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep._state.recovery import moving_tensors, unsaved_objects

EPOCHS = 4
STEPS = 8  # an epoch


class ModuleEma(nn.Module):
    """As in ema-pytorch: a module around a copy, with counters among its buffers, which begins with
    copies of the weights."""

    def __init__(self, model, update_every=1, update_after=0):
        super().__init__()
        self.online = [model]  # no part of the module
        self.ema_model = copy.deepcopy(model).requires_grad_(False)
        self.update_every, self.update_after = update_every, update_after
        self.register_buffer("step", torch.tensor(0))

    def update(self):
        step = int(self.step)
        self.step += 1
        if step % self.update_every:
            return
        decay = 0.0 if step < self.update_after else 0.9
        for mine, other in zip(self.ema_model.parameters(), self.online[0].parameters(), strict=True):
            mine.data.lerp_(other.data, 1 - decay)


class StateDictEma(nn.Module):
    """As timm's ModelEma: values of the state dicts."""

    def __init__(self, model, decay=0.9):
        super().__init__()
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    def update(self, model):
        with torch.no_grad():
            for mine, other in zip(self.module.state_dict().values(), model.state_dict().values(), strict=True):
                mine.copy_(self.decay * mine + (1.0 - self.decay) * other)


class ListEma:
    """As diffusers' EMAModel: no module, a list, with a state dict, and a decay that grows."""

    def __init__(self, parameters):
        self.shadow_params = [p.clone().detach() for p in parameters]
        self.optimization_step = 0

    @torch.no_grad()
    def step(self, parameters):
        self.optimization_step += 1
        decay = (1 + self.optimization_step) / (10 + self.optimization_step)
        for mine, other in zip(self.shadow_params, parameters, strict=True):
            mine.sub_((1 - decay) * (mine - other))

    def state_dict(self):
        return {"optimization_step": self.optimization_step, "shadow_params": self.shadow_params}

    def load_state_dict(self, state):
        self.optimization_step, self.shadow_params = state["optimization_step"], list(state["shadow_params"])


class DictEma:
    """As in many a script: a dict by name, whose items are replaced."""

    def __init__(self, model):
        self.model = model
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.backup = {}

    def update(self):
        for name, p in self.model.named_parameters():
            self.shadow[name] = (0.1 * p.detach() + 0.9 * self.shadow[name]).clone()

    def apply(self):
        for name, p in self.model.named_parameters():
            self.backup[name] = p.data
            p.data = self.shadow[name]

    def restore(self):
        for name, p in self.model.named_parameters():
            p.data = self.backup[name]
        self.backup = {}


class Center(nn.Module):
    """A loss with a running centre, which is not prepared."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(3))

    def follow(self, values):
        self.center = 0.9 * self.center + 0.1 * values


class Trainer:
    """What holds an average as one of many things."""


def deepcopied(team, model):
    average = copy.deepcopy(model)

    def update():
        with torch.no_grad():
            for mine, other in zip(average.parameters(), model.parameters(), strict=True):
                mine.mul_(0.9).add_(other, alpha=0.1)

    return update, None


def module_ema(team, model):
    ema = ModuleEma(model)
    return (lambda: ema.update()), None


def module_ema_now_and_then(team, model):
    ema = ModuleEma(model, update_every=3)
    return (lambda: ema.update()), None


def module_ema_seldom(team, model):
    """In steps 1, 10, 19 and 28: one in each interval between searches."""
    ema = ModuleEma(model, update_every=9)
    ema.step.fill_(0)
    return (lambda: ema.update()), None


def module_ema_with_a_warm_up(team, model):
    ema = ModuleEma(model, update_after=9)
    return (lambda: ema.update()), None


def state_dict_ema(team, model):
    ema = StateDictEma(model)
    return lambda: ema.update(model), None


def list_ema(team, model):
    ema = ListEma(model.parameters())
    return lambda: ema.step(model.parameters()), None


def dict_ema(team, model):
    ema = DictEma(model)
    return (lambda: ema.update()), None


def dict_ema_evaluated(team, model):
    trainer = Trainer()
    trainer.ema = DictEma(model)

    def evaluate():
        trainer.ema.apply()
        trainer.ema.restore()

    return (lambda: trainer.ema.update()), evaluate


def plain_dict(team, model):
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update():
        for name, p in model.named_parameters():
            shadow[name].data.mul_(0.9).add_(p.data, alpha=0.1)

    return update, None


def dict_made_again(team, model):
    trainer = Trainer()
    trainer.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update():
        trainer.shadow = {name: 0.9 * trainer.shadow[name] + 0.1 * p.detach() for name, p in model.named_parameters()}

    return update, None


def foreach_list(team, model):
    shadow = [p.detach().clone() for p in model.parameters()]
    return lambda: torch._foreach_lerp_(shadow, [p.detach() for p in model.parameters()], 0.05), None


def begins_late(team, model):
    ema = None

    def update():
        nonlocal ema
        if team.step == 11:
            ema = DictEma(model)
        elif team.step > 11:
            ema.update()

    return update, None


def equal_weights(team, model):
    average, number = copy.deepcopy(model), 1

    def update():
        nonlocal number
        number += 1
        for mine, other in zip(average.parameters(), model.parameters(), strict=True):
            mine.data += (other.data - mine.data) / number

    return update, None


def before_the_optimizer(team, model):
    average = [p.detach().clone() for p in model.parameters()]
    model.before = lambda: torch._foreach_lerp_(average, [p.detach() for p in model.parameters()], 0.1)
    return (lambda: None), None


def centred_loss(team, model):
    center = Center()
    return lambda: center.follow(model[0].weight.detach().mean(1)[:3]), None


def averaged_model(team, model):
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    return lambda: average.update_parameters(model), None


def temperature(team, model):
    """A tensor with an optimizer of its own, as in SAC."""
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([log_alpha], lr=0.1)

    def learn():
        (log_alpha.exp() * 0.3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return learn, None


def adam_of_a_registered_temperature(team, model):
    """The tensor is saved, but not the state of its optimizer."""
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([log_alpha], lr=0.1)
    team.register("log_alpha", log_alpha)

    def learn():
        (log_alpha.exp() * 0.3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return learn, None


def double_precision(team, model):
    average = [p.detach().double() for p in model.parameters()]
    return lambda: torch._foreach_lerp_(average, [p.detach().double() for p in model.parameters()], 0.1), None


def schedules_in_a_schedule(team, model):
    parts = [StepLR(model.optimizer, 3, 0.9), ConstantLR(model.optimizer, 0.5, 2)]
    schedule = SequentialLR(model.optimizer, parts, [9])
    return schedule.step, None


FOUND = {
    deepcopied: "average",
    module_ema: "ema",
    module_ema_now_and_then: "ema",
    module_ema_seldom: "ema",
    module_ema_with_a_warm_up: "ema",
    state_dict_ema: "ema",
    list_ema: "ema",
    dict_ema: "ema.shadow",
    dict_ema_evaluated: "trainer.ema.shadow",
    plain_dict: "shadow",
    dict_made_again: "trainer.shadow",
    foreach_list: "shadow",
    begins_late: "ema.shadow",
    equal_weights: "average",
    before_the_optimizer: "average",
    centred_loss: "center",
    averaged_model: "AveragedModel",
    temperature: "Adam",
    adam_of_a_registered_temperature: "Adam",
    double_precision: "average",
    schedules_in_a_schedule: "SequentialLR",
}
"""By script, the words that the warning must have before its bracket."""


def frozen_copy(team, model):
    frozen = copy.deepcopy(model)
    return (lambda: frozen), None


def teacher_reloaded_each_epoch(team, model):
    teacher = copy.deepcopy(model)
    return (lambda: None), lambda: teacher.load_state_dict(model.state_dict())


def teacher_reloaded_each_step(team, model):
    teacher = copy.deepcopy(model)
    return (lambda: teacher.load_state_dict(model.state_dict())), None


def teacher_with_statistics(team, model):
    teacher = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))
    return (lambda: teacher(torch.randn(4, 6))), None


def best_weights_copied(team, model):
    best = {}

    def keep():
        best["weights"] = copy.deepcopy(model.state_dict())

    return (lambda: None), keep


def best_weights_written(team, model):
    best = copy.deepcopy(model)

    def keep():
        for mine, other in zip(best.parameters(), model.parameters(), strict=True):
            mine.data.copy_(other)

    return (lambda: None), keep


def refilled_buffer(team, model):
    # of the shapes of the first layer
    static_input, static_target = torch.zeros(8, 6), torch.zeros(8)
    return (lambda: (static_input.copy_(torch.randn(8, 6)), static_target.copy_(torch.randn(8)))), None


def metric(team, model):
    trainer = Trainer()
    trainer.confusion, trainer.seen = torch.zeros(8, 6), torch.zeros(8)

    def update():
        trainer.confusion += torch.rand(8, 6)
        trainer.seen += 1

    def reset():
        trainer.confusion, trainer.seen = torch.zeros(8, 6), torch.zeros(8)

    return update, reset


def running_average_of_losses(team, model):
    losses = torch.zeros(8)

    def update():
        losses.mul_(0.9).add_(torch.rand(8), alpha=0.1)

    return update, losses.zero_


def cache_of_features(team, model):
    cache = {}

    def update():
        cache[team.step % 3] = model[0](torch.randn(8, 6)).detach()

    return update, cache.clear


def copies_of_gradients(team, model):
    trainer = Trainer()

    def keep():
        trainer.gradients = [p.grad.clone() for p in model.parameters()]

    model.before = keep
    return (lambda: None), None


def smoothed_gradients(team, model):
    """(They are state, which this does not know.)"""
    smooth = [torch.zeros_like(p) for p in model.parameters()]
    model.before = lambda: torch._foreach_lerp_(smooth, [p.grad for p in model.parameters()], 0.1)
    return (lambda: None), None


def fast_weights(team, model):
    trainer = Trainer()

    def adapt():
        trainer.fast = [p.detach() - 0.01 * torch.randn_like(p) for p in model.parameters()]

    return adapt, None


def learner_of_each_step(team, model):
    learner = copy.deepcopy(model)

    def adapt():
        learner.load_state_dict(model.state_dict())
        for p in learner.parameters():
            p.data.add_(torch.randn_like(p), alpha=0.01)

    return adapt, None


def weights_of_the_step_before(team, model):
    trainer = Trainer()

    def keep():
        trainer.previous = [p.detach().clone() for p in model.parameters()]

    model.before = keep
    return keep, None


def history_of_weights(team, model):
    history = deque(maxlen=4)
    return (lambda: history.append([p.detach().clone() for p in model.parameters()])), None


def moved_and_put_back(team, model):
    kept = [torch.empty_like(p) for p in model.parameters()]

    def perturb():
        torch._foreach_copy_(kept, [p.detach() for p in model.parameters()])

    model.before = perturb
    return (lambda: None), None


def counter_that_is_no_state(team, model):
    module = nn.Module()
    module.register_buffer("seen", torch.zeros(8), persistent=False)

    def update():
        module.seen += 1

    return update, None


def registered_dict(team, model):
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    team.register("shadow", shadow)

    def update():
        for name, p in model.named_parameters():
            shadow[name].lerp_(p.detach(), 0.1)

    return update, None


def registered_object(team, model):
    ema = ListEma(model.parameters())
    team.register("ema", ema)
    return lambda: ema.step(model.parameters()), None


def prepared_average(team, model):
    average = team.prepare(AveragedModel(team.unwrap(model), multi_avg_fn=get_ema_multi_avg_fn(0.9)))
    return lambda: average.update_parameters(model), None


def registered_temperature(team, model):
    log_alpha = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([log_alpha], lr=0.1)
    team.register("log_alpha", log_alpha)

    def learn():
        (log_alpha.exp() * 0.3).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return learn, None


def perturbation_of_each_step(team, model):
    delta = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.SGD([delta], lr=0.1)

    def attack():
        delta.data.zero_()
        for _ in range(3):
            (delta - 1).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return attack, None


def schedule_of_a_registered_temperature(team, model):
    """It acts on no prepared parameter."""
    learn, _ = registered_temperature(team, model)
    optimizer = learn.__closure__[[*learn.__code__.co_freevars].index("optimizer")].cell_contents
    schedule = StepLR(optimizer, 3)
    return lambda: (learn(), schedule.step()), None


def buffer_of_limits(team, model):
    """It does not change, though NaN is not equal to itself."""
    module = nn.Module()
    module.register_buffer("limits", torch.tensor([float("nan"), 1.0]))
    return (lambda: module), None


def counts_of_steps(team, model):
    module = nn.Module()
    module.register_buffer("num_steps", torch.tensor(0))

    def update():
        module.num_steps += 1

    return update, None


NOT_FOUND = (
    schedule_of_a_registered_temperature,
    buffer_of_limits,
    counts_of_steps,
    registered_temperature,
    perturbation_of_each_step,
    frozen_copy,
    teacher_reloaded_each_epoch,
    teacher_reloaded_each_step,
    teacher_with_statistics,
    best_weights_copied,
    best_weights_written,
    refilled_buffer,
    metric,
    running_average_of_losses,
    cache_of_features,
    copies_of_gradients,
    smoothed_gradients,
    fast_weights,
    learner_of_each_step,
    weights_of_the_step_before,
    history_of_weights,
    moved_and_put_back,
    counter_that_is_no_state,
    registered_dict,
    registered_object,
    prepared_average,
)


def train(script, run_dir):
    """What is said of a script."""
    said = []
    moving_tensors.warn = unsaved_objects.warn = lambda text, *, code: said.append(text)
    with lockstep.join(run_dir=run_dir, checkpoint_every=1000, seed=1) as team:
        data = TensorDataset(torch.randn(8 * STEPS, 6), torch.randint(3, (8 * STEPS,)))
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model, optimizer, loader = team.prepare(model, optimizer, DataLoader(data, 8, shuffle=True))
        model.before, model.optimizer = (lambda: None), optimizer
        after_step, after_epoch = script(team, model)
        for _ in team.epochs(EPOCHS):
            for batch in loader:
                for inputs, targets in batch.shards:
                    team.backward(nn.functional.cross_entropy(model(inputs), targets))
                model.before()
                optimizer.step()
                optimizer.zero_grad()
                after_step()
            if after_epoch is not None:
                after_epoch()
    return said


def train_all(names):
    """What is said of each script of a table, by its name."""
    return {name: train(globals()[name], f"runs/{name}") for name in names}
