"""Promises of the settings that a script is verified under."""

import pytest

from lockstep.analysis import settings
from lockstep.errors import ConfigError

pytestmark = pytest.mark.timeout(10)


def test_settings_are_every_combination_with_the_reference_first():
    found = settings.expand((1, 2), (0, 2), ("local", "torchrun"), None, resumes=False)
    assert len(found) == 8
    assert (found[0].world_size, found[0].workers, found[0].launcher) == (1, 0, "local")
    assert found[-1].label == "2 processes, 2 loader workers, torchrun"
    assert [setting.number for setting in found] == list(range(1, 9))
    assert len({setting.slug for setting in found}) == 8


def test_without_a_choice_every_launcher_is_run_and_a_run_is_killed_and_resumed_at_another_world_size():
    found = settings.expand((1, 2, 4), (None,), None, None, resumes=True)
    assert [setting.label for setting in found] == [
        "1 process",
        "2 processes",
        "4 processes",
        "1 process, python",
        "2 processes, torchrun",
        "1 process, resuming where 4 processes were killed",
    ]
    assert len({setting.slug for setting in found}) == 6
    assert [found.world_size for found in settings.expand((4,), (None,), None, None, resumes=True)] == [4, 1, 4, 1]
    alone = settings.expand((1,), (None,), None, None, resumes=True)
    assert alone[-1].label == "1 process, resuming where 1 process was killed"


@pytest.mark.parametrize(
    ("num_cores", "num_gpus", "expected"), [(1, 0, (1, 2)), (2, 0, (1, 2, 4)), (8, 1, (1, 2, 4)), (8, 2, (1, 2))]
)
def test_the_world_sizes_left_out_fit_the_machine(num_cores, num_gpus, expected):
    assert settings.default_world_sizes(num_cores=num_cores, num_gpus=num_gpus) == expected


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: settings.expand((1, 4), (None,), None, 2, resumes=True), "--shards 4 or more"),
        (lambda: settings.expand((2,), (None,), ("local",), None, resumes=False), "one setting only"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
