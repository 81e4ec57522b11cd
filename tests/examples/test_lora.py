"""What is frozen stays as it was, and the rest learns the same on one process and on two."""

import re

import pytest
import torch

import lockstep

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def test_one_and_two_processes_learn_the_same_and_only_what_is_not_frozen(told_on_one_and_two, examples):
    told, run_dir = told_on_one_and_two("lora.py", "--epochs", "3")
    assert float(re.search(r"accuracy ([\d.]+)%", told[-1])[1]) > 70
    weights, learned = lockstep.load_weights(run_dir), torch.load(run_dir / "lora.pt")
    assert sorted(learned) == sorted(name for name in weights if name.endswith(("up", "down")))
    assert all(torch.equal(weights[name], learned[name]) for name in learned)
    assert sum(value.numel() for value in learned.values()) < 0.05 * sum(value.numel() for value in weights.values())
    assert all(value.abs().sum() > 0 for value in learned.values())
