"""Promises of restoring a checkpoint: a state file that does not belong to its manifest is refused,
and so is one of other objects, unless the difference is allowed; what any number of ranks has saved
comes back on all; and a state that the script has loaded itself is told from one that a constructor
has made."""

import json
from types import SimpleNamespace

import pytest
import torch
from codes import raises
from torch import nn
from torch.optim.lr_scheduler import StepLR

from lockstep._base.errors import CheckpointError, MismatchError
from lockstep._state.checkpoint.files import checksum
from lockstep._state.checkpoint.manifest import Manifest, verify
from lockstep._state.checkpoint.store import Store
from lockstep._state.checkpoint.writer import Writer
from lockstep._state.recovery.position import ScriptPosition
from lockstep._state.recovery.resuming import Checkpoint, Restorer
from lockstep._state.recovery.run_state import RunState
from lockstep._state.recovery.snapshots import Snapshots

pytestmark = pytest.mark.timeout(20)


def restorer(path, state, text):
    """One of a checkpoint without tensors, whose plain state is a text."""
    (path / "state.json").write_text(text)
    size = {"bytes": len(text), "crc32": checksum(path / "state.json")}
    manifest = Manifest(step=3, epoch=0, time_s=0.0, files={"state.json": size}, **state.describe())
    return Restorer(checkpoint=Checkpoint(path=path, manifest=manifest), state=state, allow=("numerics",))


def plain_state(**fields):
    return json.dumps({"objects": [], "loaders": [], "registered": {}, "best": None, "best_epoch": -1, **fields})


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "checkpoint-unreadable"),
        ("[" * 100_000, "checkpoint-unreadable"),
        ("[]", "checkpoint-damaged"),
        ('{"objects": {}}', "checkpoint-damaged"),
        (plain_state(objects=[{}]), "checkpoint-damaged"),
    ],
)
def test_a_state_that_does_not_belong_to_the_manifest_is_refused(tmp_path, text, code):
    with raises(CheckpointError, code):
        restorer(tmp_path, RunState(), text).apply(is_final=True)


def test_a_missing_state_is_refused(tmp_path):
    one = restorer(tmp_path, RunState(), plain_state())
    (tmp_path / "state.json").unlink()
    with raises(CheckpointError, "checkpoint-unreadable"):
        one.apply(is_final=True)


def test_what_the_checkpoint_does_not_contain_stays_as_it_is(tmp_path):
    state = RunState()
    one = restorer(tmp_path, state, plain_state(best=0.5, best_epoch=4))
    table = {"new": 1}
    state.register("table", table)  # later than the checkpoint
    one.apply(is_final=True)
    assert (table, state.best, state.best_epoch) == ({"new": 1}, 0.5, 4)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(torch.optim.Adagrad, {}), (torch.optim.SGD, {"momentum": 0.9}), (torch.optim.AdamW, {}), (torch.optim.RMSprop, {})],
)
def test_a_state_before_the_first_restore_is_the_scripts_own_if_it_has_stepped(tmp_path, kind, options):
    state, parameter = RunState(), nn.Parameter(torch.ones(2))
    optimizer = kind([parameter], lr=0.1, **options)
    state.keep(nn.Linear(1, 1))
    state.keep(optimizer)
    one = restorer(tmp_path, state, "")
    assert not one.script_has_restored()  # Adagrad's constructor has made a state
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert one.script_has_restored()
    one.is_done = True  # then it is of the checkpoint
    assert not one.script_has_restored()


def test_one_that_is_only_begun_is_not_done(tmp_path):
    one = restorer(tmp_path, RunState(), plain_state())
    one.apply(is_final=False)
    assert not one.is_done
    one.apply(is_final=True)
    assert one.is_done


# What is saved by some ranks, and restored by a launch with what may be others


class Counting(torch.optim.SGD):
    """Its steps are counted in attributes, one of them a tensor."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.num_steps, self.total = 0, torch.zeros(3)

    def step(self, closure=None):
        self.num_steps += 1
        self.total = self.total + self.num_steps
        return super().step(closure)


class Renamed(nn.Linear):
    pass


class Loader:
    def __init__(self, *lines, position=0):
        self.lines, self.position, self.held = list(lines), position, set()

    def describe_data(self):
        return self.lines

    def compared(self):
        return None

    def state(self):
        return {"position": self.position, "order": torch.arange(3) + self.position}

    def load_state(self, state):
        assert (state["order"] - state["position"]).tolist() == [0, 1, 2]
        self.position = state["position"]


def prepared(
    value=0.0, *, model=nn.Linear, width=2, kind=Counting, more=None, loaders=("samples",), names=("table",), **options
):
    """A state whose tensors all have a value."""
    state, layer = RunState(), model(width, 1)
    options = {"lr": 0.1, "momentum": 0.9, **options}
    optimizer = kind([{"params": [*layer.parameters()], **(more or {})}], **options)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, value)
        parameter.grad = torch.full_like(parameter, value)
    for item in (layer, optimizer, StepLR(optimizer, 2)):
        state.keep(item)
    state.loaders = [Loader(line, position=int(value)) for line in loaders]
    for name in names:
        state.register(name, {"tensor": torch.full((4,), value)}, compare=name != "clock")
    return state


def save(path, states, seed=None):
    """A checkpoint that as many ranks have written, the first of them last."""
    for rank, state in reversed([*enumerate(states)]):
        state.script_seed = seed
        ranks = SimpleNamespace(rank=rank, size=len(states))
        birth = SimpleNamespace(as_json=dict)
        snapshots = Snapshots(SimpleNamespace(keep=2), "token", birth, state, ranks)
        job = snapshots.take(ScriptPosition(), 3, 0, finished=False)
        writer = Writer(Store(path))
        writer.submit(job)
        assert writer.wait(10)
        [result] = writer.results()
        assert not result.error
        writer.close()
    return Checkpoint(path=result.path, manifest=verify(result.path))


def restore(checkpoint, state, allow=(), seed=None):
    """As a launch does: as the script prepares its objects, and when it comes to its place."""
    one = Restorer(checkpoint=checkpoint, state=state, allow=allow)
    one.check_seed(seed)
    one.check_objects()
    one.check_loaders()
    one.apply(is_final=True)
    return state


def values(state):
    """All that a state has."""
    model, optimizer, schedule = (adapter.target for adapter in state.objects)
    tensors = [*model.parameters(), *(p.grad for p in model.parameters()), optimizer.total]
    tensors += [slots["momentum_buffer"] for slots in optimizer.state.values()]
    tensors += [adapter.target["tensor"] for adapter in state.registered.values()]
    plain = [optimizer.num_steps, schedule.last_epoch, optimizer.param_groups[0]["lr"]]
    plain += [each.position for each in state.loaders]
    return [tensor.tolist() for tensor in tensors], plain, state.best, state.best_epoch


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_all_ranks_get_what_any_number_of_them_has_saved_and_of_what_differs_that_of_rank_0(tmp_path, num_ranks):
    saved = []
    for rank in range(num_ranks):
        # The optimizer's attributes, and what is not compared, may differ.
        one = prepared(5.0, loaders=("first", "second"), names=("table", "clock", "other"))
        _, optimizer, schedule = (adapter.target for adapter in one.objects)
        for _ in range(3):
            optimizer.step()
            schedule.step()
        one.registered["clock"].target["tensor"] += rank
        optimizer.total += rank
        one.best, one.best_epoch = 0.25, 7
        saved.append(one)
    checkpoint = save(tmp_path, saved)
    found = restore(checkpoint, prepared(loaders=("first", "second"), names=("other", "clock", "table")))
    found.registered = {name: found.registered[name] for name in ("table", "clock", "other")}
    assert values(found) == values(saved[0])


# What a launch has instead, the code of its refusal, and what allows it.
CHANGES = {
    "nothing": ({}, "", ""),
    "a class of a model": ({"model": Renamed}, "", ""),
    "a weight": ({"width": 3}, "objects-changed", ""),
    "a class of an optimizer": ({"kind": torch.optim.SGD}, "objects-changed", ""),
    "a rate": ({"lr": 0.2}, "optimizer-changed", "optimizer"),
    "an option more": ({"more": {"own": 1, "new": 2}}, "optimizer-changed", "optimizer"),
    "an option less": ({"more": {}}, "optimizer-changed", "optimizer"),
    "data": ({"loaders": ("other samples", "more")}, "data-changed", "data"),
    "a loader more": ({"loaders": ("samples", "more", "most")}, "data-changed", "data"),
    "a loader less": ({"loaders": ("samples",)}, "data-changed", "data"),
    "a name more": ({"names": ("table", "other")}, "", ""),
    "a name less": ({"names": ()}, "objects-changed", ""),
}


@pytest.mark.parametrize("what", CHANGES)
def test_other_objects_are_refused_unless_that_difference_is_allowed(tmp_path, what):
    changes, code, allowable = CHANGES[what]
    usual = {"more": {"own": 1}, "loaders": ("samples", "more")}
    checkpoint = save(tmp_path, [prepared(5.0, **usual)])

    def now():
        return prepared(**{**usual, **changes})

    for allow in ("nothing", "data", "optimizer", "numerics"):
        if code and allow != allowable:
            with raises(MismatchError, code):
                restore(checkpoint, now(), [allow])
            continue
        model, optimizer, _ = (adapter.target for adapter in restore(checkpoint, now(), [allow]).objects)
        assert model.weight.eq(5.0).all()
        assert optimizer.param_groups[0]["lr"] == changes.get("lr", 0.1)


def test_an_object_more_or_less_is_refused(tmp_path):
    checkpoint, less, more = save(tmp_path, [prepared()]), prepared(), prepared()
    less.objects.pop()
    more.keep(nn.Linear(1, 1))
    for state in (less, more):
        with raises(MismatchError, "objects-changed"):
            restore(checkpoint, state)


@pytest.mark.parametrize(("before", "now"), [(None, None), (None, 5), (5, None), (5, 5), (5, 6)])
def test_a_seed_of_the_scripts_own_must_be_the_same(tmp_path, before, now):
    checkpoint = save(tmp_path, [prepared()], seed=before)
    if before == now:
        restore(checkpoint, prepared(), seed=now)
        return
    with raises(MismatchError, "seed-changed"):
        restore(checkpoint, prepared(), seed=now)


def test_numeric_settings_must_be_the_same_as_far_as_the_checkpoint_has_them(tmp_path):
    checkpoint = save(tmp_path, [prepared()])
    settings = checkpoint.manifest.numerics
    name, value = "deterministic_warn_only", settings["deterministic_warn_only"]
    settings[name] = not value
    with raises(MismatchError, "numerics-changed"):
        restore(checkpoint, prepared())
    restore(checkpoint, prepared(), ("numerics",))
    del settings[name]  # an older version has not saved it
    restore(checkpoint, prepared())
