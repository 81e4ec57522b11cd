"""What changes the last bits is tried, put back whole, and proposed."""

import pytest
import torch
from torch import nn

from lockstep.digest import digest
from lockstep.tuning.numerics import changes
from lockstep.tuning.verdict import apart

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def of(model, **more):
    return {change.name: change for change in changes([model], **{"cores": 4, "on_gpu": False, "world_size": 1, **more})}


def test_a_change_that_was_tried_leaves_nothing_behind():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
    state, strides = digest(model.state_dict()), [parameter.stride() for parameter in model.parameters()]
    proposals = of(model)
    assert list(proposals) == ["1 thread a process", "4 threads a process", "channels last"]
    proposals["4 threads a process"].do()
    assert torch.get_num_threads() == 4
    proposals["4 threads a process"].undo()
    proposals["channels last"].do()
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    proposals["channels last"].undo()
    assert [parameter.stride() for parameter in model.parameters()] == strides
    assert (digest(model.state_dict()), torch.get_num_threads()) == (state, 2)


def test_only_what_makes_sense_is_tried():
    dense, images = nn.Linear(2, 2), nn.Conv2d(3, 8, 3)
    assert list(of(dense)) == ["1 thread a process", "4 threads a process"]
    assert list(of(dense, cores=2)) == ["1 thread a process"]
    assert list(of(dense, on_gpu=True)) == []
    assert list(of(images, on_gpu=True)) == ["channels last"]
    assert list(of(images, on_gpu=True, world_size=2)) == []


def test_what_gains_is_proposed_with_the_words_to_write_and_the_rest_is_named():
    gains = {"name": "4 threads a process", "how": "--threads 4", "speedups": [1.5, 1.3], "gains": True}
    fails = {"name": "channels last", "how": "model.to(...)", "speedups": [0.9], "gains": False}
    proposed, rest = apart({"apart": [gains, fails]})
    assert proposed == (
        "apart, since it changes the last bits: --threads 4 makes steps 1.40 times as fast, confirmed; for a new run, as it "
        "belongs to its birth"
    )
    assert rest == "no clear gain from what changes the last bits: channels last (0.90 times as fast)"
    assert apart({"apart": []}) == []
