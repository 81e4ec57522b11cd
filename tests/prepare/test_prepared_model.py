"""A prepared model is the user's own for all that looks at it, and a plain one for all that copies
or saves it."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

import lockstep
from lockstep._prepare.guarded_methods import idle_when, keep_dtypes, refuse_inside
from lockstep._prepare.model import PreparedModel

pytestmark = pytest.mark.timeout(90)


class Net(nn.Module):
    """A model with attributes and methods of its own."""

    kind = "net"

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = 2.0

    def forward(self, x, *, twice=False):
        y = self.norm(self.first(x)) * self.scale
        return {"out": y, "pair": (y, y * 2)} if twice else y

    def describe(self, word):
        return f"{word} {self.scale}"

    @property
    def width(self):
        return self.first.out_features


@pytest.fixture
def team(tmp_path):
    with lockstep.join(run_dir=str(tmp_path / "run"), device="cpu", progress="off") as team:
        yield team


@pytest.fixture
def pair(team):
    """The user's model, and the prepared one."""
    model = Net()
    return model, team.prepare(model)


def test_it_is_a_module_with_the_users_own_parameters_and_names(pair):
    model, prepared = pair
    assert isinstance(prepared, nn.Module)
    for kind in ("named_parameters", "named_buffers", "named_modules", "named_children"):
        ours, theirs = list(getattr(prepared, kind)()), list(getattr(model, kind)())
        assert [name for name, _ in ours] == [name for name, _ in theirs]
        assert all(a is b for (name, a), (_, b) in zip(ours, theirs, strict=True) if name)
    assert list(prepared.state_dict()) == list(model.state_dict())
    assert not any("module" in name for name in prepared.state_dict())


def test_attributes_methods_and_properties_are_the_users(pair):
    model, prepared = pair
    assert prepared.first is model.first
    assert (prepared.kind, prepared.scale, prepared.width, prepared.describe("by")) == ("net", 2.0, 3, "by 2.0")
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = prepared.nope
    assert hasattr(prepared, "width")
    assert not hasattr(prepared, "nope")


def test_what_only_a_wrapper_would_have_is_explained(pair):
    _, prepared = pair
    with pytest.raises(AttributeError, match=r"Remove `.module`"):
        prepared.module.state_dict()
    with pytest.raises(AttributeError, match=r"optimizer.step\(\)"), prepared.no_sync():
        pass
    assert not hasattr(prepared, "module")


def test_a_module_of_that_name_is_the_users(team):
    inner = nn.Linear(2, 2)
    assert team.prepare(nn.ModuleDict({"module": inner})).module is inner


def test_what_is_set_on_it_is_set_on_the_users_model(pair):
    model, prepared = pair
    prepared.scale = 3.0
    prepared.extra = nn.Linear(1, 1)
    prepared.first.bias = None
    assert model.scale == 3.0
    assert model.extra is prepared.extra
    assert "extra.weight" in prepared.state_dict()
    assert model.first.bias is None
    prepared.register_buffer("seen", torch.zeros(1))
    assert "seen" in model.state_dict()
    del prepared.extra
    assert not hasattr(model, "extra")
    del prepared.scale
    assert not hasattr(model, "scale")


def test_training_mode_is_shared_in_both_directions(pair):
    model, prepared = pair
    assert prepared.training
    assert prepared.eval() is prepared
    assert not model.training
    assert not model.norm.training
    model.train()
    assert prepared.training
    prepared.train(False)
    assert not model.norm.training


def test_gradients_are_cleared_as_asked(pair):
    model, prepared = pair
    for set_to_none in (False, True):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        prepared.zero_grad(set_to_none)
        assert [p.grad if p.grad is None else p.grad.unique().tolist() for p in model.parameters()] == [
            None if set_to_none else [0.0]
        ] * 4
    model.first.weight.grad = torch.ones(3, 2)
    prepared.zero_grad()
    assert model.first.weight.grad is None


def test_a_sequential_can_be_indexed_iterated_and_measured(team):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    prepared = team.prepare(model)
    assert prepared[0] is model[0]
    assert prepared[-1] is model[-1]
    assert len(prepared) == 3
    assert [type(layer) for layer in prepared] == [nn.Linear, nn.ReLU, nn.Linear]
    assert isinstance(prepared[:2], nn.Sequential)
    prepared[1] = nn.Tanh()
    assert isinstance(model[1], nn.Tanh)
    with pytest.raises(TypeError):
        len(team.prepare(Net()))


def test_states_travel_in_both_directions(pair):
    model, prepared = pair
    plain = Net()
    assert str(plain.load_state_dict(prepared.state_dict())) == "<All keys matched successfully>"
    nn.init.zeros_(plain.first.weight)
    prepared.load_state_dict(plain.state_dict())
    assert torch.equal(model.first.weight, torch.zeros(3, 2))


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), _saved])
def test_a_copy_is_a_plain_model_of_the_users_class(pair, way):
    model, prepared = pair
    copied = way(prepared)
    assert type(copied) is Net
    assert all(torch.equal(a, b) for a, b in zip(copied.parameters(), model.parameters(), strict=True))
    nn.init.zeros_(copied.first.weight)
    assert not torch.equal(copied.first.weight, model.first.weight)


def test_it_can_be_unwrapped(team, pair):
    model, prepared = pair
    assert team.unwrap(prepared) is model
    assert team.unwrap(model) is model
    assert isinstance(prepared, PreparedModel)
    assert "Net" in repr(prepared)


def test_hooks_of_both_run_once(pair):
    model, prepared = pair
    called = []
    model.register_forward_hook(lambda *_: called.append("model"))
    model.first.register_forward_pre_hook(lambda *_: called.append("layer"))
    prepared.register_forward_hook(lambda *_: called.append("prepared"))
    prepared(torch.ones(2, 2))
    assert called == ["layer", "model", "prepared"]


class Adapted(Net):
    """A model that trains its first layer only."""

    def parameters(self, recurse=True):
        return self.first.parameters(recurse)

    def requires_grad_(self, requires_grad=True):
        self.first.requires_grad_(requires_grad)
        return self


def test_methods_of_modules_that_the_model_overrides_are_the_models(team):
    model = Adapted()
    prepared = team.prepare(model)
    assert [id(p) for p in prepared.parameters()] == [id(p) for p in model.first.parameters()]
    assert prepared.requires_grad_(False) is prepared
    assert not model.first.weight.requires_grad
    assert model.norm.weight.requires_grad


def test_backward_hooks_of_the_whole_model_run(pair):
    _, prepared = pair
    called = []
    prepared.register_full_backward_pre_hook(lambda *_: called.append("before"))
    prepared.register_full_backward_hook(lambda *_: called.append("behind"))
    prepared(torch.ones(2, 2, requires_grad=True)).sum().backward()
    assert called == ["before", "behind"]


# of PyTorch's, for any copy of a schedule
@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")
def test_a_copy_of_a_prepared_schedule_or_average_acts_on_itself():
    model = nn.Linear(1, 1)
    schedule = lr_scheduler.StepLR(torch.optim.SGD(model.parameters(), lr=1.0), 1, gamma=0.5)
    average = AveragedModel(model)
    idle_when(schedule, "step", lambda: False)
    keep_dtypes(average)
    refuse_inside(average, ("update_parameters",), lambda call: None)
    copied, of_average = copy.deepcopy((schedule, average))
    copied.step()
    of_average.update_parameters(model)
    assert (copied.last_epoch, schedule.last_epoch) == (1, 0)
    assert (int(of_average.n_averaged), int(average.n_averaged)) == (1, 0)
    assert pickle.loads(pickle.dumps(schedule)).last_epoch == 0


def test_arguments_and_outputs_of_any_structure_pass_through(pair):
    _, prepared = pair
    outputs = prepared(torch.ones(2, 2), twice=True)
    assert isinstance(outputs["pair"], tuple)
    assert torch.equal(outputs["pair"][1], outputs["out"] * 2)


def test_bf16_mixed_computes_in_bfloat16_and_gives_float32(tmp_path):
    with lockstep.join(run_dir=str(tmp_path / "run"), device="cpu", precision="bf16-mixed", progress="off") as team:
        model = Net()
        prepared = team.prepare(model)
        inside = []
        model.first.register_forward_hook(lambda _, __, output: inside.append(output.dtype))
        outputs = prepared(torch.ones(4, 2), twice=True)
        assert inside == [torch.bfloat16]
        assert {outputs["out"].dtype, *(tensor.dtype for tensor in outputs["pair"])} == {torch.float32}
        assert {parameter.dtype for parameter in prepared.parameters()} == {torch.float32}
        with torch.no_grad():
            assert prepared.eval()(torch.ones(1, 2)).dtype == torch.float32
        assert inside[-1] == torch.bfloat16  # evaluation too
        with team.autocast():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
