"""Promises of the configuration: checked when it is made, and nothing wins silently."""

import dataclasses

import pytest

from lockstep.config import RunConfig
from lockstep.errors import ConfigError

pytestmark = pytest.mark.timeout(20)


def test_it_is_one_frozen_value_with_names():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1
    with pytest.raises(TypeError):
        RunConfig("ddp")


@pytest.mark.parametrize("name", ["strategy", "precision", "backend", "device", "on_nan", "progress", "trace"])
def test_an_unknown_name_lists_those_that_are_known(name):
    with pytest.raises(ConfigError, match=rf"unknown {name} 'nonsense': choose one of .*{getattr(RunConfig(), name)}"):
        RunConfig(**{name: "nonsense"})


@pytest.mark.parametrize("name", ["shards", "threads", "log_every"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_a_count_is_a_whole_number_from_one(name, value):
    with pytest.raises(ConfigError, match=f"{name}="):
        RunConfig(**{name: value})


@pytest.mark.parametrize("value", [-1, 2**63, 0.5, None, False])
def test_a_seed_is_a_whole_number_that_every_generator_takes(value):
    with pytest.raises(ConfigError, match="seed="):
        RunConfig(seed=value)
    assert RunConfig(seed=2**63 - 1).seed == 2**63 - 1


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_time(value):
    with pytest.raises(ConfigError, match="timeout_s="):
        RunConfig(timeout_s=value)


@pytest.mark.parametrize("value", ["60", None])
def test_a_timeout_is_a_number(value):
    with pytest.raises(ConfigError, match="timeout_s="):
        RunConfig(timeout_s=value)


def test_settings_of_the_command_line_and_the_script_are_joined():
    merged = RunConfig.merge({"shards": 4, "seed": 2}, {"precision": "bf16-mixed", "seed": 2})
    assert (merged.shards, merged.seed, merged.precision) == (4, 2, "bf16-mixed")


def test_where_both_name_a_setting_and_differ_neither_wins():
    with pytest.raises(ConfigError, match=r"seed is 1 in the script's join\(\) and 2 on the command line"):
        RunConfig.merge({"seed": 2}, {"seed": 1})


@pytest.mark.parametrize("where", [({"sharts": 4}, {}), ({}, {"sharts": 4})])
def test_a_setting_that_does_not_exist_is_an_error_that_lists_all(where):
    with pytest.raises(ConfigError, match=r"unknown setting 'sharts': choose one of .*shards"):
        RunConfig.merge(*where)


@pytest.mark.parametrize("value", [-1, 0.5, "2", True])
def test_a_number_of_workers_is_a_whole_number_from_zero(value):
    with pytest.raises(ConfigError, match="workers="):
        RunConfig(workers=value)
    assert RunConfig(workers=0).workers == 0


def test_a_step_to_end_the_trace_at_needs_a_trace():
    with pytest.raises(ConfigError, match="trace_until=3 without a trace"):
        RunConfig(trace_until=3)
    assert RunConfig(trace_until=3, trace="steps").trace_until == 3
