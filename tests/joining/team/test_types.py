"""What an editor knows of the settings of a script. (What a type checker knows:
``typed_script``.)"""

import inspect

import pytest

import lockstep
from lockstep._base.errors import ConfigError


def test_the_settings_of_join_are_those_of_a_run_with_types_and_defaults():
    parameters = dict(inspect.signature(lockstep.join).parameters)
    for name in ("rank", "world_size"):
        assert parameters.pop(name).default is None
    settings = dict(inspect.signature(lockstep.RunConfig).parameters)
    assert parameters.pop("settings").kind is inspect.Parameter.VAR_KEYWORD  # those of tools
    assert parameters == settings


def test_a_setting_that_does_not_exist_is_an_error_also_without_a_type_checker():
    with pytest.raises(ConfigError, match=r"unknown setting 'shard'.*'shards'"):
        lockstep.join(shard=4)
