"""Examples learn, and the same on one process and on two."""

import importlib.util
import re

import pytest
import torch

import lockstep

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

# What an example says of its last epoch, and the least percentage of it.
LEARN = [
    ("digits.py", r"accuracy ([\d.]+)%", 60),
    ("contrastive.py", r"top-5 of 60 ([\d.]+)%", 40),  # 8 by chance
    ("streaming.py --workers 1", r"accuracy ([\d.]+)%", 25),
    pytest.param("transformer.py", r"top-1 ([\d.]+)%", 15, marks=pytest.mark.longest),
    # of three modules
    pytest.param("fine_tuning.py", r"accuracy ([\d.]+)%", 50, marks=pytest.mark.longest),
]


@pytest.mark.parametrize(("command", "said", "least"), LEARN)
def test_one_and_two_processes_learn_the_same(told_on_one_and_two, require, command, said, least):
    if command == "fine_tuning.py":
        missing = importlib.util.find_spec("transformers") is None
        require("transformers", "transformers is not installed (pip install transformers)" if missing else None)
    told, run_dir = told_on_one_and_two(*command.split(), "--epochs", "1")
    assert float(re.search(said, told[-1])[1]) > least
    if command == "fine_tuning.py":
        assert {"config.json", "model.safetensors"} <= {file.name for file in (run_dir / "fine-tuned").iterdir()}


def test_the_example_of_the_readme_runs_under_plain_python(python_here, examples):
    done = python_here(examples / "digits.py", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert "global batch 64 = 8 shards x 8 on 1 process" in done.stdout
    assert len(re.findall(r"epoch \d+: test loss [\d.]+, accuracy [\d.]+%", done.stdout)) == 1


def test_what_is_not_frozen_learns_alone(told_on_one_and_two):
    told, run_dir = told_on_one_and_two("lora.py", "--epochs", "1")
    assert float(re.search(r"accuracy ([\d.]+)%", told[-1])[1]) > 45
    weights, learned = lockstep.load_weights(run_dir), torch.load(run_dir / "lora.pt")
    assert sorted(learned) == sorted(name for name in weights if name.endswith(("up", "down")))
    assert all(torch.equal(weights[name], learned[name]) for name in learned)
    assert sum(value.numel() for value in learned.values()) < 0.05 * sum(value.numel() for value in weights.values())
    assert all(value.abs().sum() > 0 for value in learned.values())
