"""Promises of the settings that a script is verified under."""

import pytest
from codes import raises

from lockstep._base.errors import ConfigError
from lockstep._tools.verify import settings
from lockstep._tools.verify.trace.traced_run import gather

pytestmark = pytest.mark.timeout(10)


def test_settings_are_every_combination_with_the_reference_first():
    found = settings.expand((1, 2), (0, 2), ("local", "torchrun"), None, resumes=False)
    assert len(found) == 8
    assert (found[0].world_size, found[0].workers, found[0].launcher) == (1, 0, "local")
    assert found[-1].label == "2 processes, 2 loader workers, torchrun"
    assert [setting.number for setting in found] == list(range(1, 9))
    assert len({setting.slug for setting in found}) == 8


def test_without_a_choice_every_launcher_is_run_and_two_runs_are_killed_and_resumed_at_another_world_size():
    found = settings.expand((1, 2, 3), (None,), None, None, resumes=True)
    assert [setting.label for setting in found] == [
        "1 process",
        "2 processes",
        "3 processes",
        "1 process, python",
        "2 processes, torchrun",
        "1 process, resuming where 3 processes were killed",
        found[-1].label,
    ]
    assert (found[-1].world_size, found[-1].killed_at, found[-1].in_last_epoch) == (3, 1, True)
    assert len({setting.slug for setting in found}) == 7
    assert [setting.number for setting in found] == list(range(1, 8))
    fours = settings.expand((4,), (None,), ("local",), None, resumes=True)
    assert [(setting.killed_at, setting.world_size) for setting in fours] == [(None, 4), (4, 1), (1, 4)]
    alone = settings.expand((1,), (None,), None, None, resumes=True)
    assert alone[-2].label == "1 process, resuming where 1 process was killed"


@pytest.mark.parametrize(("sizes", "shards"), [((1,), 1), ((1, 2, 3), 4)])
def test_shards_that_nobody_gives_are_enough_for_all_processes(sizes, shards):
    assert settings.default_shards(sizes) == shards


def test_no_setting_has_more_processes_than_the_script_has_shards():
    planned = settings.expand((1, 2, 3), (None,), None, None, resumes=True)
    assert settings.within(planned, 8) == planned
    limited = settings.within(planned, 2)
    assert [(setting.number, setting.world_size, setting.killed_at) for setting in limited] == [
        *((1, 1, None), (2, 2, None), (3, 1, None), (4, 2, None)),
        *((5, 1, 2), (6, 2, 1)),
    ]


def steps_of(*lengths, **start):
    """A run with passes of so many steps."""
    step_lines = [
        {"event": "step", "step": 0, "pass": number} for number, length in enumerate(lengths) for _ in range(length)
    ]
    lines = [{**line, "step": step} for step, line in enumerate(step_lines, start=1)]
    return gather([[{"event": "start", "world_size": 1, **start}, *lines]])


@pytest.mark.parametrize(
    ("lengths", "first", "last"),
    [
        ((10,), 5, str),
        ((10, 10, 10), 5, 25),
        ((2, 2), 1, 3),
        ((1, 1), 1, 1),  # of the first epoch's end, and so at the beginning of the last
        ((1, 10), 1, 6),
        ((1,), str, str),
    ],
)
def test_a_run_is_killed_where_steps_are_left_in_its_first_and_its_last_epoch(lengths, first, last):
    run = steps_of(*lengths)
    for expected, in_last_epoch in ((first, False), (last, True)):
        found = settings.step_to_kill_after(run, in_last_epoch=in_last_epoch)
        assert isinstance(found, str) if expected is str else found == expected
    off = settings.step_to_kill_after(steps_of(*lengths, checkpoint_every="off"), in_last_epoch=False)
    assert isinstance(off, str)


@pytest.mark.parametrize(
    ("num_cores", "num_gpus", "strategy", "expected"),
    [
        (1, 0, None, (1, 2)),
        (2, 0, None, (1, 2, 3)),
        (8, 1, None, (1, 2, 3)),
        (8, 2, None, (1, 2)),
        (2, 0, "fsdp", (1, 2, 4)),  # each divides V
    ],
)
def test_the_world_sizes_left_out_fit_the_machine(num_cores, num_gpus, strategy, expected):
    assert settings.default_world_sizes(num_cores=num_cores, num_gpus=num_gpus, strategy=strategy) == expected


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: settings.expand((1, 4), (None,), None, 2, resumes=True), "verify-too-few-shards"),
        (lambda: settings.expand((2,), (None,), ("local",), None, resumes=False), "verify-one-setting"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make, code):
    with raises(ConfigError, code):
        make()
