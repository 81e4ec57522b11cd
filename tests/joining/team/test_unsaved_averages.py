"""Averages of the weights that no checkpoint holds are found, whatever their class; and nothing
else is taken for one."""

import average_scripts
import pytest

pytestmark = pytest.mark.timeout(90)


QUICK = {
    "schedules_in_a_schedule": 1,
    "schedule_of_a_registered_temperature": 0,
    "adam_of_a_registered_temperature": 1,
    "double_precision": 1,
    "module_ema_seldom": 1,
    "centred_loss": 1,
    "history_of_weights": 0,
    "best_weights_written": 0,
    "buffer_of_limits": 0,
    "counts_of_steps": 0,
    "perturbation_of_each_step": 0,
}
"""Some scripts of both tables, and the number of warnings."""


@pytest.mark.quick
@pytest.mark.parametrize("name", QUICK)
def test_what_a_resumed_run_would_miss_is_said_once_and_nothing_else(crew, name):
    [told] = crew(1, average_scripts.train_all, [name], shards=2)
    assert len(told[name]) == QUICK[name], told


def test_each_kind_of_average_that_is_in_no_checkpoint_is_named_once(crew):
    [told] = crew(1, average_scripts.train_all, [script.__name__ for script in average_scripts.FOUND], shards=2)
    missing = {}
    for script, name in average_scripts.FOUND.items():
        lines = told[script.__name__]
        if len(lines) != 1 or not lines[0].startswith(f"{name} "):
            missing[script.__name__] = lines
    assert not missing, missing


def test_nothing_is_said_of_what_is_no_average_or_is_registered(crew):
    names = [script.__name__ for script in average_scripts.NOT_FOUND]
    [told] = crew(1, average_scripts.train_all, names, shards=2)
    assert {name: lines for name, lines in told.items() if lines} == {}


def test_of_several_ranks_one_speaks(crew):
    first, second = crew(2, average_scripts.train_all, ["dict_ema", "frozen_copy"], shards=2)
    assert [len(first["dict_ema"]), first["frozen_copy"]] == [1, []]
    assert second == {"dict_ema": [], "frozen_copy": []}
