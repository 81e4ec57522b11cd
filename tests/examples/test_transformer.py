"""The transformer learns, with losses weighted by token, the same on one process and on two."""

import re

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def test_one_and_two_processes_learn_the_same(told_on_one_and_two):
    told, _ = told_on_one_and_two("transformer.py", "--epochs", "1")
    found = re.search(r"epoch 1: test loss ([\d.]+), top-1 ([\d.]+)%, top-5 ([\d.]+)%", told[-1])
    loss, top1, top5 = map(float, found.groups())
    assert loss < 3.0  # guessing: 4.5
    assert top1 > 15
    assert top5 > 45
