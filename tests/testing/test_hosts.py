"""A function that fits with another library's trainer is tested as any other."""

import importlib.util

import pytest
import trainers_tested

from lockstep.testing import DifferenceError

pytestmark = [pytest.mark.timeout(150), pytest.mark.longest]


@pytest.fixture
def need(require):
    def check(library):
        where = f"lockstep.integrations.{library}"
        parents = all(importlib.util.find_spec(name) for name in ("lockstep.integrations", library) if name)
        is_there = parents and importlib.util.find_spec(where) is not None
        require(library, None if is_there else f"{library}, or {where}, is not installed")

    return check


def test_transformers_trainer_is_the_same_after_a_kill(check_same, need, tmp_path):
    need("transformers")
    history = check_same((1, 2), trainers_tested.fit_by_transformers, tmp_path, kill=True, limit_s=400)
    assert history[-1]["step"] == 6


def test_a_loss_of_transformers_trainer_that_depends_on_the_rank_is_found(check_same, need, tmp_path):
    need("transformers")
    with pytest.raises(DifferenceError) as raised:
        check_same((1, 2), trainers_tested.fit_by_transformers, tmp_path, True, limit_s=400)
    assert (raised.value.step, raised.value.stage, raised.value.shard) == (1, "loss", 1)


def test_lightnings_trainer_is_the_same_after_a_kill(check_same, need, tmp_path):
    need("lightning")
    assert check_same((1, 2), trainers_tested.fit_by_lightning, tmp_path, kill=True, limit_s=400) == 12
