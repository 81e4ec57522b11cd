"""What a type checker and an editor know of a script: the settings, and what ``prepare`` gives back."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.base.errors import ConfigError

ROOT = Path(__file__).parents[2]

SCRIPT = """
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import assert_type

import lockstep
from lockstep.data.batch import Batch
from lockstep.data.loader import PreparedLoader


class Net(torch.nn.Sequential):  # can be iterated, and is no loader for it
    depth: int = 3


team = lockstep.join(shards=4, checkpoint_every="10m", rank=0, world_size=1)
lockstep.join(shard=4)  # E: Unexpected keyword argument "shard"; did you mean "shards"?
lockstep.join(audit="2")  # E: Argument "audit" has incompatible type "str"
lockstep.join(shards="4")  # E: Argument "shards" has incompatible type "str"

net = Net(torch.nn.Linear(4, 2))
sgd = torch.optim.SGD(net.parameters())
steps = torch.optim.lr_scheduler.StepLR(sgd, 1)
data = DataLoader(TensorDataset(torch.zeros(4, 4), torch.zeros(4)))

model, optimizer, loader = team.prepare(net, sgd, data)
assert_type(model, Net)
assert_type(optimizer, torch.optim.SGD)
assert_type(loader, PreparedLoader)
assert_type(model.depth, int)
model.depth.nonsense  # E: "int" has no attribute "nonsense"
for batch in loader:
    assert_type(batch, Batch)
    batch.to("cpu")  # E: "Batch" has no attribute "to"
    for x, y in batch.shards:
        team.backward(model(x).sum())
        batch.add(loss=y)
    assert_type(batch["loss"], Any)  # a tensor, if tensors were added
    assert_type(loader.averages, dict[str, float])

assert_type(team.prepare(net), Net)
assert_type(team.prepare([torch.zeros(2)]), PreparedLoader)
assert_type(team.prepare(net, sgd), tuple[Net, torch.optim.SGD])
assert_type(team.prepare(net, data), tuple[Net, PreparedLoader])
assert_type(team.prepare(net, sgd, steps), tuple[Net, torch.optim.SGD, torch.optim.lr_scheduler.StepLR])
assert_type(team.prepare(net, sgd, steps, data)[3], PreparedLoader)
assert_type(team.prepare(net, net, sgd, sgd, data)[4], PreparedLoader)
first, *others = team.prepare(net, *[sgd, sgd], data)
team.prepare(3)  # E: No overload variant of "prepare" of "Team" matches argument type "int"
"""


@pytest.mark.long
@pytest.mark.timeout(300)  # mypy reads all of torch, if it has not before
def test_a_type_checker_knows_the_settings_and_what_is_prepared(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--hide-error-context", "--no-pretty", str(script)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    found = [(int(m[1]), m[2]) for m in re.finditer(r"train\.py:(\d+): error: (.*)", run.stdout)]
    lines = enumerate(SCRIPT.splitlines(), 1)
    expected = [(number, line.partition("# E: ")[2]) for number, line in lines if "# E: " in line]
    assert [number for number, _ in found] == [number for number, _ in expected], run.stdout + run.stderr
    for (_, said), (_, begins) in zip(found, expected, strict=True):
        assert said.startswith(begins)


def test_the_settings_of_join_are_those_of_a_run_with_their_types_and_what_they_are_by_default():
    parameters = dict(inspect.signature(lockstep.join).parameters)
    for name in ("rank", "world_size"):
        assert parameters.pop(name).default is None
    settings = dict(inspect.signature(lockstep.RunConfig).parameters)
    assert parameters.pop("settings").kind is inspect.Parameter.VAR_KEYWORD  # those of tools
    assert parameters == settings


def test_a_setting_that_does_not_exist_is_an_error_also_without_a_type_checker():
    with pytest.raises(ConfigError, match=r"unknown setting 'shard': choose one of .*shards"):
        lockstep.join(shard=4)
