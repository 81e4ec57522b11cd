"""Statistics of many layers that are combined as one: they get the bits, and stay the tensors, that
they get and stay where each is combined by itself."""

import itertools

import pytest
import torch
from codes import raises
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lockstep._base.errors import ModelError
from lockstep._plan.blocks import even_blocks
from lockstep._plan.shards import plan_step
from lockstep._sync import buffers as buffers_module
from lockstep._sync.buffers import ShardBuffers, add_changes

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("one_thread")]


class Odd(nn.BatchNorm1d):
    """A layer with buffers of many kinds beside its statistics."""

    def __init__(self):
        super().__init__(4)
        self.register_buffer("table", torch.zeros(2, 3))
        self.register_buffer("spectrum", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("narrow", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("wide", torch.ones(3, dtype=torch.float64))
        self.register_buffer("flags", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("scalar", torch.tensor(1.5))
        self.register_buffer("strided", torch.arange(6.0)[::2])
        self.register_buffer("weights", nn.Parameter(torch.ones(2)).as_subclass(Marked).detach())
        self.register_buffer("low", torch.tensor([float("nan"), -0.0, 1e16]))
        self.register_buffer("lone", torch.ones(1, 2)[:, 0])
        self.register_buffer("later", None)

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            with torch.no_grad():
                mean = y.mean()
                self.table[0] += x.mean()
                self.spectrum += x.mean() * 1j
                self.narrow += x.mean()
                self.wide += x.mean()
                self.flags[0] = True
                self.scalar.add_(x.mean())
                self.strided.add_(x.mean())
                self.lone.add_(x.mean())
                self.weights.add_(x.mean())
                self.low[2] = mean
        return y


class Marked(torch.Tensor):
    """A class of tensors of its own."""


class Assigning(nn.BatchNorm1d):
    """A layer that assigns new tensors in place of writing."""

    def forward(self, x):
        mean, var = self.running_mean.clone(), self.running_var.clone()
        y = functional.batch_norm(x, mean, var, training=self.training)
        if self.training:
            self.running_mean, self.running_var = mean, var
        return y


class Native(nn.BatchNorm1d):
    """A layer that writes its statistics without a count, even where it does not train."""

    def forward(self, x):
        return functional.batch_norm(x, self.running_mean, self.running_var, training=True)


def halves():
    return nn.BatchNorm1d(4, dtype=torch.bfloat16, affine=False)


def sharing():
    first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    second.running_mean = first.running_mean
    return nn.Sequential(first, second)


def nan():
    layer = nn.BatchNorm1d(4)
    layer.running_mean[1] = float("nan")
    return layer


LAYERS = {
    "one": lambda: [nn.BatchNorm1d(4)],
    "many": lambda: [nn.BatchNorm1d(4) for _ in range(5)],
    "of many kinds": lambda: [Odd(), nn.BatchNorm1d(4, momentum=None), nn.BatchNorm1d(4, track_running_stats=False), Odd()],
    "of other classes": lambda: [Assigning(4), Native(4), nn.BatchNorm1d(4, affine=False)],
    "with shared buffers": lambda: [sharing(), nn.BatchNorm1d(4)],
    "of two dtypes": lambda: [nn.BatchNorm1d(4), nn.BatchNorm1d(4, dtype=torch.float64), nan()],
    "of 16 bits": lambda: [halves(), nn.BatchNorm1d(4), halves()],
    "of instances": lambda: [nn.InstanceNorm1d(6, track_running_stats=True), nn.BatchNorm1d(4)],
}


def widen(layers):
    layers[0].double()


def reshape(layers):
    layers[-1].running_mean = torch.zeros(1, 4)[0].expand(4) if not layers[-1].training else torch.zeros(4)


def assign(layers):
    layers.load_state_dict({name: tensor.clone() for name, tensor in layers.state_dict().items()}, assign=True)


def load(layers):
    with torch.no_grad():
        for buffer in layers.buffers():
            if buffer.is_floating_point():
                buffer += 0.25


def toggle(layers):
    layers[0].train(not layers[0].training)


def reform(layers):
    for buffer in list(layers.buffers())[::2]:
        if buffer.ndim == 0:
            buffer.data = buffer.data.view(1)


BETWEEN = [lambda layers: None, widen, reshape, assign, load, toggle, reform]
MODES = [lambda n: True, lambda n: n == 0, lambda n: n > 0, lambda n: False]
"""Whether layer n trains."""


def run_layer(layer, shard):
    of = next(layer.buffers(), torch.zeros(0)).dtype
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(shard)).to(of if of.is_floating_point else torch.float32)
    x.requires_grad_()
    return layer(x).square().sum(), x


def train(new, trains, between, num_shards, ranks):
    """Three phases. The bits after each shard and phase, and which tensors a phase has left."""
    models = [nn.ModuleList(new()) for _ in range(ranks)]
    for number, layer in ((number, layer) for model in models for number, layer in enumerate(model)):
        layer.train(trains(number))
    if ranks > 1 and len(models[0]) > 1:
        models[1][0].eval()
        models[0][-1].eval()
    sides = [ShardBuffers() for _ in models]
    for side, model in zip(sides, models, strict=True):
        side.attach(model)
    found, same = [], []
    for phase in range(3):
        changes = {}
        if phase == 1:
            for model in models:
                between(model)
        for side in sides:
            side.begin_phase(num_shards)
        first = [buffer for model in models for buffer in model.buffers()]
        for shard in range(num_shards):
            side, model = sides[shard % ranks], models[shard % ranks]
            losses = [run_layer(layer, 10 * phase + shard) for layer in model]
            for number, (loss, x) in enumerate(losses):
                with side.restored_after():
                    loss.backward(retain_graph=True)
                    if number == 0:
                        checkpoint(model[0], x, use_reentrant=False).sum().backward()
            add_changes(changes, side.take_changes(1 / num_shards, is_lowest_shard=shard == 0))
            side.rewind()
            found.append(bits(model))
            for loss, _ in losses:  # a second backward pass
                loss.backward()
        for side in sides:
            of_all = {number: changes.get(number, side.absent(number)) for number in sorted(changes)}
            side.apply(of_all)
        for model in models:
            found.append(bits(model))
            same += [any(buffer is one for one in first) for buffer in model.buffers()]
    return found, same


def bits(model):
    plain = {name: buffer.detach().as_subclass(torch.Tensor) for name, buffer in model.named_buffers()}
    return {
        name: (
            buffer.dtype,
            buffer.shape,
            buffer.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).tolist(),
        )
        for name, buffer in plain.items()
    }


@pytest.mark.parametrize(("num_shards", "ranks"), [(1, 1), (2, 1), (3, 2)])
@pytest.mark.parametrize("kind", LAYERS)
def test_they_get_the_bits_of_each_by_itself_and_stay_the_same_tensors(monkeypatch, kind, num_shards, ranks):
    # Each change between phases in a mode, and in another one with other layers and numbers.
    modes = itertools.islice(itertools.cycle(MODES), list(LAYERS).index(kind) + num_shards, None)
    for between, trains in zip(BETWEEN, modes, strict=False):
        joined = outcome(LAYERS[kind], trains, between, num_shards, ranks)
        with monkeypatch.context() as patch:
            patch.setattr(buffers_module, "can_join", lambda tensor: False)
            apart = outcome(LAYERS[kind], trains, between, num_shards, ranks)
        assert repr(joined[0]) == repr(apart[0])
        assert joined[1] or between is not BETWEEN[0]  # no error, where nothing is done between phases
        # and not fewer: of a layer that has changed some, the others are left alone, too
        assert all(is_same for is_same, was_same in zip(joined[1], apart[1], strict=True) if was_same)


def outcome(*arguments):
    try:
        return train(*arguments)
    except (ModelError, RuntimeError) as error:  # 16 bits with float32, for example
        return (type(error), str(error)), []


def attached(layers):
    buffers = ShardBuffers()
    buffers.attach(layers)
    return buffers


def resize(layer):
    layer.running_var.resize_(7)


def assign_wider(layer):
    layer.running_var = layer.running_var.double()


def assign_rows(layer):
    layer.running_var = torch.ones(2, 4)


def hold(buffers):
    with buffers.restored_after():
        pass


def measure(buffers):
    buffers.take_changes(0.5, is_lowest_shard=True)


@pytest.mark.parametrize("change", [resize, assign_wider, assign_rows])
@pytest.mark.parametrize("look_at", [hold, measure])
def test_one_that_changes_its_form_is_named_among_many(change, look_at):
    layers = nn.Sequential(*[nn.BatchNorm1d(4) for _ in range(3)], nn.InstanceNorm1d(4, track_running_stats=True))
    buffers = attached(layers)
    buffers.begin_phase(2)
    change(layers[3])
    with pytest.raises(ModelError, match=r"'running_var' of InstanceNorm1d became"):
        look_at(buffers)
    buffers.rewind()
    assert layers[3].running_var.tolist() == [1.0] * 4


def add_a_dimension(layer):
    layer.num_batches_tracked.unsqueeze_(0)


def see_as_integers(layer):
    layer.running_var.data = layer.running_var.data.view(torch.int32)


@pytest.mark.parametrize("change", [add_a_dimension, see_as_integers])
def test_one_that_changes_its_form_where_it_is_ends_the_shard(change):
    layers = nn.Sequential(*[nn.BatchNorm1d(4) for _ in range(3)])
    buffers = attached(layers)
    buffers.begin_phase(2)
    hold(buffers)
    change(layers[1])
    with raises(ModelError, "buffer-changed-form"):
        measure(buffers)


def test_they_are_written_where_a_script_has_moved_them():
    layers = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(3))
    buffers = attached(layers)
    for _ in range(2):  # the second time they are known
        buffers.begin_phase(2)
        layers[0](torch.randn(4, 2))
        buffers.rewind()
    before = layers[0].running_mean
    layers[0].running_mean.data = torch.full((2,), 5.0)
    buffers.begin_phase(2)
    layers[0](torch.randn(4, 2))
    buffers.rewind()
    assert layers[0].running_mean is before
    assert before.tolist() == [5.0, 5.0]
    layers[1].running_var.resize_(2)
    buffers.rewind()
    assert layers[1].running_var.tolist() == [1.0] * 3


def test_a_tensor_of_the_script_is_not_written_to():
    layers = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(3))
    buffers = attached(layers)
    for _ in range(2):  # the second time they are known
        buffers.begin_phase(2)
        given = torch.full((2,), 5.0)
        layers[0].running_mean = given
        with buffers.restored_after():
            pass
        buffers.take_changes(0.5, is_lowest_shard=True)
        assert layers[0].running_mean is not given
        assert layers[0].running_mean.tolist() == [0.0, 0.0]
        assert given.tolist() == [5.0, 5.0]


class Operations(TorchDispatchMode):
    """The names of the operations that run, but for views."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ not in ("view", "detach"):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def operations(num_layers):
    layers, buffers = nn.Sequential(*[nn.BatchNorm1d(4) for _ in range(num_layers)]), ShardBuffers()
    buffers.attach(layers)
    changes = {}
    with Operations() as found:
        buffers.begin_phase(2)
        for micro in plan_step(1, (4,), 0, even_blocks(1, 2)).micro_batches:
            layers.apply(lambda layer: layer.running_mean.data.add_(1.0) if isinstance(layer, nn.BatchNorm1d) else None)
            with buffers.restored_after():
                pass
            add_changes(changes, buffers.end_shard(micro))
        buffers.apply(changes)
    return [name for name in found.names if name != "aten.add_.Tensor"]


def test_a_shard_costs_as_many_operations_with_twenty_layers_as_with_two_and_none_without():
    assert operations(0) == []
    assert operations(20) == operations(2)
