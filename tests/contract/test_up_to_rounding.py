"""Other sums than the fixed tree: with PyTorch's all-reduce, or Horovod's, the answer of one
process up to rounding.

All ranks have the same one to the bit.
"""

from functools import partial

import pytest
import torch
from bits import in_numbers
from contract_corpus import ROUNDED
from horovod_helpers import horovod

__all__ = ["horovod"]  # a fixture
pytestmark = pytest.mark.timeout(120)
WIDE = {"many dtypes", "16-true"}  # their numbers have 8 to 11 bits
# Those in which gradients reach Horovod in another way. (What stands between them is the strategy's
# no more than the others'.)
BY_HOROVOD = ("plain", "many dtypes", "frozen at first", "two losses by weights", "unused parameters")
BY_HOROVOD += ("one sample", "bf16-mixed")


def assert_close(expected, found, tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, (torch.Tensor, float)):
            options = {"rtol": tolerance, "atol": tolerance, "equal_nan": True, "msg": lambda m, n=name: f"{n}: {m}"}
            torch.testing.assert_close(torch.as_tensor(found[name]), torch.as_tensor(value), **options)
        else:
            assert found[name] == value, name


def assert_as_alone(name, run_alone, run, nproc, strategy):
    training = ROUNDED[name]
    task, settings = partial(in_numbers, training.task), {"shards": 4, "checkpoint_every": "off", **training.settings}
    [alone] = run_alone(1, task, **settings, strategy="single")
    if strategy == "ddp" and name == "unused parameters":
        settings["find_unused_parameters"] = True
    first, *others = run(nproc, task, **settings, strategy=strategy)
    for other in others:
        assert_close(first["state"], other["state"], 0)
        for step, values in other["by_step"].items():
            assert_close(first["by_step"][step], values, 0)
    tolerance = 0.02 if name in WIDE else 2e-4 if name.endswith("mixed") else 3e-5
    assert_close(alone["state"], first["state"], tolerance)
    for step, values in alone["by_step"].items():
        assert_close(values, first["by_step"][step], tolerance)


@pytest.mark.parametrize("name", ROUNDED)
def test_pytorchs_sum_gives_the_answer_of_one_process(standing_crew, name):
    assert_as_alone(name, standing_crew, standing_crew, 3, "ddp")


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize("name", BY_HOROVOD)
def test_horovods_sum_does_too(standing_crew, crew, name):
    assert_as_alone(name, standing_crew, crew, 3, "horovod")
