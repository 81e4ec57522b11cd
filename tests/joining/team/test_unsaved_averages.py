"""Averages of the weights that no checkpoint holds are found, whatever their class; and nothing
else is taken for one."""

import average_scripts
import pytest

pytestmark = pytest.mark.timeout(90)


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
