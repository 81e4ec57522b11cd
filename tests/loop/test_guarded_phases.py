"""What shards must not change is found at the end of the shard or phase, and the same change is
none of the guards' business outside."""

import copy

import pytest
import torch
from codes import raises
from one_process import Process
from torch import nn
from torch.optim.lr_scheduler import ChainedScheduler, StepLR

from lockstep._base.errors import ModelError, UsageError
from lockstep._prepare.guards import IncompleteGrad, ShardGradients
from lockstep._prepare.unprepared import forget_gradients, is_local_grad

pytestmark = [pytest.mark.timeout(30), pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")]
STRATEGIES = pytest.mark.parametrize("strategy", ["exact", "single"])


class Guarded(Process):
    """A process that also trains an optimizer of two groups by schedules, and a tensor that belongs
    to no prepared model."""

    def __init__(self, sizes=(2,), strategy="exact"):
        super().__init__(sizes, strategy)
        weight, self.beside = self.model.weight, torch.ones(1, requires_grad=True)
        rate = torch.tensor(0.1)
        groups = [{"params": [weight]}, {"params": [nn.Parameter(torch.ones(1))], "lr": rate, "foreach": False}]
        self.optimizer = torch.optim.AdamW(groups, 0.1)
        self.schedule, inner = StepLR(self.optimizer, 5), StepLR(self.optimizer, 5)
        self.chain = ChainedScheduler([inner])
        trained = self.phases.trained
        trained.optimizers.append(self.optimizer)
        trained.schedules += [self.schedule, self.chain]

    def run(self, act, batch=None):
        """A phase in whose second shard something is done."""
        for number, _ in enumerate((batch or self.batch()).shards):
            if number == 1:
                act(self)

    def loss_beside(self, x):
        return (self.model(x) * self.beside).mean()

    def train_beside(self):
        """A step in whose shards the tensor beside the model gets a gradient."""
        for x in self.batch().shards:
            self.phases.backward(self.loss_beside(x), None, None, {})
        self.phases.end_step()


@torch.no_grad()
def in_place(process):
    process.model.weight.add_(1.0)


def through_data(process):
    process.model.weight.data.add_(1.0)


def other_memory(process):
    process.model.weight.data = process.model.weight.data.clone()


def frozen(process):
    process.model.weight.requires_grad_(False)


def set_option(name, value, group=0):
    def act(process):
        process.optimizer.param_groups[group][name] = value

    return act


CHANGES = {
    "a weight in place": (in_place, "weights-changed-inside"),
    "a weight through .data": (through_data, "weights-changed-inside"),
    "the memory of a weight": (other_memory, "weights-changed-inside"),
    "a frozen weight": (frozen, "weights-changed-inside"),
    "a rate": (set_option("lr", 0.2), "options-changed-inside"),
    "a rate that is a tensor": (set_option("lr", torch.tensor(0.2), 1), "options-changed-inside"),
    "betas of the second group": (set_option("betas", (0.5, 0.5), 1), "options-changed-inside"),
    "a schedule": (lambda process: process.schedule.step(), "options-changed-inside"),
    "schedules in a chain": (lambda process: process.chain.step(), "options-changed-inside"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_shard_changes_is_refused_and_what_is_changed_between_phases_is_not(what):
    act, code = CHANGES[what]
    outside = Guarded()
    batch = outside.batch()
    outside.run(lambda _: None, batch)
    act(outside)
    outside.run(lambda _: None, batch)
    with raises(ModelError if code.startswith("weights") else UsageError, code) as refused:
        Guarded().run(act)
    assert "in step 1" in str(refused.value)


OTHER_MODELS = {
    "linear": lambda: nn.Linear(1, 1),
    "frozen": lambda: nn.Linear(1, 1).requires_grad_(False),
    "normed": lambda: nn.Sequential(nn.LayerNorm(1), nn.Linear(1, 1)),
    "with buffers only": lambda: nn.BatchNorm1d(1, affine=False),
}
WRITES = {
    "in place": lambda weight: weight.detach().add_(1.0),
    "through .data": lambda weight: weight.data.add_(1.0),
    "other memory": lambda weight: setattr(weight, "data", weight.data.clone()),
    "frozen or unfrozen": lambda weight: weight.requires_grad_(not weight.requires_grad),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("number", range(9))
def test_each_weight_of_several_models_is_guarded(how, shard, number):
    process = Guarded()
    models = [process.model, *(make() for make in OTHER_MODELS.values())]
    for model in models[1:]:
        process.add(model)
    parameters = [parameter for model in models for parameter in model.parameters()]
    assert len(parameters) == 9
    with raises(ModelError, "weights-changed-inside") as refused:
        for at, _ in enumerate(process.batch().shards):
            if at == shard:
                WRITES[how](parameters[number])
    assert f"parameter {process.phases.trained.parameters[parameters[number]]!r}" in str(refused.value)


@pytest.mark.parametrize("what", CHANGES)
def test_an_audit_finds_them_too(what):
    act, code = CHANGES[what]
    process = Guarded()
    before = process.phases.guards.weights.contents()
    assert process.phases.guards.weights.first_change(before) is None
    act(process)
    change = process.phases.guards.weights.first_change(before)
    expected = "parameter 'weight'" if code.startswith("weights") else "a learning rate"
    assert change == (None if act in (other_memory, frozen) else expected)


@pytest.mark.parametrize(("sizes", "strategy"), [((2,), "exact"), ((2,), "single"), ((1,), "single"), ((1,), "exact")])
@pytest.mark.parametrize("order", ["alone", "before", "after"])
@pytest.mark.parametrize("shard", [0, 1])
def test_a_backward_pass_of_the_script_is_refused_in_any_shard(sizes, strategy, order, shard):
    if shard >= sum(sizes):
        shard = 0
    process = Guarded(sizes, strategy)
    with raises(UsageError, "gradient-by-script") as refused:
        for number, x in enumerate(process.batch().shards):
            if number != shard or order == "after":
                process.backward(x)
            if number == shard:
                process.model(x).mean().backward()
            if order == "before":
                process.backward(x)
    assert f"step 1, shard {shard}" in str(refused.value)


@pytest.mark.parametrize("before_call", [0, 1, 2])
def test_one_that_reaches_later_layers_only_is_refused_before_any_call_and_at_the_end(before_call):
    process = Guarded()
    head = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    process.add(head)
    with raises(UsageError, "gradient-by-script") as refused:
        for x in process.batch().shards:
            for call in range(3):
                if call == before_call:
                    head[1](x).mean().backward()
                if call < 2:
                    process.phases.backward(head(process.model(x)).mean(), None, None, {})
    assert "'1.weight'" in str(refused.value)


@STRATEGIES
@pytest.mark.parametrize("leaves", [False, True])
def test_it_may_make_one_outside_also_after_a_phase_that_it_left(strategy, leaves):
    process = Guarded(strategy=strategy)
    for x in process.batch().shards:
        process.backward(x)
        if leaves:
            break
    if leaves:
        process.phases.leave_step(failed=True)
    process.clear()
    (3 * process.model.weight).sum().backward()
    assert process.gradient == 3.0


def test_gradients_cannot_be_used_inside_and_are_true_ones_behind_shards_without_a_backward_pass():
    process = Guarded()
    for number, x in enumerate(process.batch(4).shards):
        if number == 0:
            process.backward(x)
            assert isinstance(process.model.weight.grad, IncompleteGrad)
            with raises(UsageError, "gradient-used-inside"):
                process.model.weight.grad.norm()
        else:
            assert process.gradient is None
    assert process.gradient == pytest.approx(0.5 * 0.5)


OTHER_FORMS = {
    "other numbers": torch.ones(2, 3),
    "strides": torch.ones(3, 2).t(),
    "bfloat16": torch.ones(2, 3, dtype=torch.bfloat16),
    "complex": torch.ones(2, 3, dtype=torch.complex64),
    "more rows": torch.ones(4, 3),
    "as many elements": torch.ones(3, 2),
    "one element": torch.ones(1),
    "no dimension": torch.ones(()),
    "no element": torch.ones(0, 3),
    "meta": torch.ones(2, 3, device="meta"),
}


@pytest.mark.parametrize("to", OTHER_FORMS)
def test_a_placeholder_is_used_again_while_it_fits_the_parameter(to):
    def placeholder():
        gradients.put_placeholders()
        found = parameter.grad
        assert type(found) is IncompleteGrad
        assert (found.shape, found.dtype, found.device) == (parameter.shape, parameter.dtype, parameter.device)
        with raises(UsageError, "gradient-used-inside"):
            found + 1
        gradients.end_shard(1)
        assert parameter.grad is None
        return found

    model = nn.Linear(3, 2, bias=False)
    parameter = model.weight
    gradients = ShardGradients({parameter: "weight"}, is_plain=False)
    # (Its hook on the node of the parameter would keep the parameter from being moved to "meta".)
    gradients.marked.append(parameter)
    first = placeholder()
    assert placeholder() is first
    other = OTHER_FORMS[to]
    if other.device.type == "meta":
        torch.utils.swap_tensors(parameter, nn.Parameter(other))
    else:
        parameter.data = other.clone()
    fits = other.shape == (2, 3) and other.dtype == torch.float32 and other.device.type == "cpu"
    second = placeholder()
    assert (second is first) == fits
    assert placeholder() is second


def test_an_optimizer_does_not_step_before_there_was_a_gradient():
    process = Guarded()
    optimizer = process.optimizer
    for _ in range(2):
        process.run(lambda _: None)
        with raises(UsageError, "step-without-gradients"):
            process.phases.before_optimizer(optimizer, (optimizer,), {})
        process.phases.end_step()
    process.train(process.batch())
    process.phases.before_optimizer(optimizer, (optimizer,), {})
    process.phases.end_step()
    process.clear()
    process.run(lambda _: None)
    process.phases.before_optimizer(optimizer, (optimizer,), {})  # only the first step is checked


def use(process):
    return process.beside.grad.norm()


@pytest.mark.parametrize("first", [1, 2])
def test_a_gradient_of_no_prepared_model_cannot_be_used_until_it_is_one_of_outside(first):
    process = Guarded()
    for _ in range(1, first):
        process.train(process.batch())
        process.phases.end_step()
    for _ in range(3):  # not all of these steps look for such tensors
        process.train_beside()
        with raises(UsageError, "gradient-of-unprepared"):
            use(process)
        assert copy.deepcopy(process.beside).grad is None
    process.beside.grad = None
    process.beside.sum().backward()
    process.train(process.batch())  # the gradient is as it was before the phase
    assert use(process) == 1.0


def test_a_gradient_of_no_prepared_model_cannot_be_used_after_a_loop_that_was_left():
    process = Guarded()
    for x in process.batch(4).shards:
        process.phases.backward(process.loss_beside(x), None, None, {})
        break
    process.phases.leave_step(failed=False)
    with raises(UsageError, "gradient-of-unprepared"):
        use(process)


def test_a_gradient_from_outside_that_a_shard_adds_to_cannot_be_used():
    process = Guarded()
    process.train_beside()
    process.beside.grad = torch.ones(1)
    process.train_beside()
    with raises(UsageError, "gradient-of-unprepared"):
        use(process)


def test_a_tensor_that_was_prepared_since_keeps_its_gradient():
    process = Guarded()
    process.train_beside()
    process.phases.trained.ids.add(id(process.beside))
    process.beside.grad = None
    process.train_beside()
    assert not is_local_grad(process.beside.grad)


def test_a_model_that_is_about_to_be_prepared_loses_such_gradients_and_no_others():
    process, model = Guarded(), nn.Linear(1, 1)
    model.weight.grad, process.beside = torch.ones(1, 1), model.bias
    process.train_beside()
    assert is_local_grad(model.bias.grad)
    forget_gradients(model)
    assert (model.bias.grad, model.weight.grad) == (None, torch.ones(1, 1))


@pytest.mark.parametrize(("is_mixed", "first"), [(False, 1), (True, 1), (True, 3)])
def test_an_optimizer_does_not_step_on_gradients_of_no_prepared_model_from_inside(is_mixed, first):
    """In the third step nothing looks for such tensors."""
    process = Guarded()
    optimizer = torch.optim.SGD([process.beside, *([process.model.weight] if is_mixed else [])], 0.1)
    for _ in range(1, first):
        process.train(process.batch())
        process.phases.end_step()
    for x in process.batch().shards:
        process.phases.backward(process.loss_beside(x), None, None, {})
    with raises(UsageError, "gradient-of-unprepared"):
        process.phases.before_optimizer(optimizer, (optimizer,), {})
