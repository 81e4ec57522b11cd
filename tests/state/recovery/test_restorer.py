"""Promises of restoring a checkpoint: a state file that does not belong to its manifest is refused,
and a state that the script has loaded itself is told from one that a constructor has made."""

import json

import pytest
import torch
from codes import raises
from torch import nn

from lockstep._base.errors import CheckpointError
from lockstep._state.checkpoint.files import checksum
from lockstep._state.checkpoint.manifest import Manifest
from lockstep._state.recovery.resuming import Checkpoint, Restorer
from lockstep._state.recovery.run_state import RunState

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
