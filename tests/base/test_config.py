"""Promises of the configuration: checked when it is made, and nothing wins silently."""

import dataclasses
import datetime
import itertools

import pytest
from codes import raises

from lockstep._base.config import COMMAND_LINE, IN_SCRIPT, RunConfig, merge_settings
from lockstep._base.errors import ConfigError

pytestmark = pytest.mark.timeout(20)


def test_it_is_one_frozen_value_with_names():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 1
    with pytest.raises(TypeError):
        RunConfig("ddp")


@pytest.mark.parametrize("value", ["nonsense", ["nonsense"]])
def test_an_unknown_name_lists_those_that_are_known(value):
    with raises(ConfigError, "unknown-name") as refused:
        RunConfig(strategy=value)
    assert repr(value) in str(refused.value)
    assert RunConfig().strategy in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shards", value) for value in (0, 1.5, "2", True)),
        *(("seed", value) for value in (-1, 2**63)),
        *(("workers", value) for value in (-1, "2")),
        *(("batch_dim", value) for value in (-1, None)),
        *(("timeout_s", value) for value in (0, float("nan"), float("inf"), "60", None)),
        *(("fresh", value) for value in ("no", 0)),
    ],
)
def test_a_setting_of_another_kind_or_beyond_its_limits_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"{name}="):
        RunConfig(**{name: value})


def test_a_setting_may_be_at_its_limits():
    for name, value in (("seed", 0), ("seed", 2**63 - 1), ("shards", 1), ("shards", 2**20)):
        assert getattr(RunConfig(**{name: value}), name) == value


def test_settings_of_the_command_line_and_the_script_are_joined():
    merged = RunConfig.merge({"shards": 4, "seed": 2}, {"precision": "bf16-mixed", "seed": 2})
    assert (merged.shards, merged.seed, merged.precision) == (4, 2, "bf16-mixed")


def test_where_both_name_a_setting_and_differ_neither_wins():
    with raises(ConfigError, "setting-conflict"):
        RunConfig.merge({"seed": 2}, {"seed": 1})


SPELLINGS = {
    "checkpoint_every": ("20m", "1200s", datetime.timedelta(minutes=20)),
    "allow": (["shards", "data"], ["data", "shards"], ["data", "shards", "data"]),
    "nondeterministic": ("avg_pool3d,adaptive_avg_pool2d", ["adaptive_avg_pool2d", "avg_pool3d"]),
    "track": ("tensorboard,wandb", ["tensorboard", " wandb"]),
}
"""Settings of which one value has several spellings."""


@pytest.mark.parametrize(
    ("name", "one", "other"), [(name, *pair) for name, all_ in SPELLINGS.items() for pair in itertools.permutations(all_, 2)]
)
def test_one_value_in_two_spellings_is_no_conflict_and_one_setting(name, one, other):
    assert RunConfig.merge({name: one}, {name: other}) == RunConfig(**{name: one}) == RunConfig(**{name: other})
    assert RunConfig(**{name: one}) != RunConfig()


def test_who_has_given_a_setting_is_known_unless_it_asks_for_the_default():
    command, script = (
        {"seed": 2, "shards": 4, "device": "auto", "workers": None},
        {"seed": 2, "threads": 1, "balance": "auto"},
    )
    asked = merge_settings(command, script)
    assert asked.givers == {"seed": COMMAND_LINE, "shards": COMMAND_LINE, "threads": IN_SCRIPT}
    assert merge_settings({}, {"audit": 0}).givers == {"audit": IN_SCRIPT}
    seeded = merge_settings({"shards": 4}, {}).with_seed(0)
    assert (seeded.run.seed, seeded.givers) == (0, {"shards": COMMAND_LINE, "seed": IN_SCRIPT})


@pytest.mark.parametrize("where", [({"sharts": 4}, {}), ({}, {"sharts": 4})])
def test_a_setting_that_does_not_exist_is_an_error_that_lists_all(where):
    with pytest.raises(ConfigError, match=r"unknown setting 'sharts'.*'shards'"):
        RunConfig.merge(*where)


def test_several_devices_are_for_strategies_that_can_use_them():
    with raises(ConfigError, "devices-per-process-unsupported") as refused:
        RunConfig(strategy="fsdp", devices_per_process=2)
    assert "auto, single, ddp, exact, horovod, dp" in str(refused.value)
    assert RunConfig(strategy="fsdp", devices_per_process=1).devices_per_process == 1
    assert RunConfig().devices_per_process is None


def test_a_step_to_end_the_trace_at_needs_a_trace():
    with raises(ConfigError, "trace-until-without-trace"):
        merge_settings({"trace_until": 3}, {})
    assert merge_settings({"trace_until": 3}, {"trace": "steps"}).tools["verify"].trace_until == 3


@pytest.mark.parametrize("settings", [{"trace": "nonsense"}, {"audit": -1}, {"journal_every": True}])
def test_options_of_tools_are_checked_like_settings_of_the_run(settings):
    for where in ((settings, {}), ({}, settings)):
        with pytest.raises(ConfigError, match="|".join(settings)):
            merge_settings(*where)
    assert merge_settings({}, {"audit": 2, "shards": 4}).run == RunConfig(shards=4)
    with raises(ConfigError, "setting-conflict"):
        merge_settings({"audit": 3}, {"audit": 2})


@pytest.mark.parametrize(
    ("value", "interval"),
    [
        *((1, 1), (500, 500), ("500", 500), ("off", "off")),
        *(("30s", "30s"), ("10m", "600s"), ("2h", "7200s"), ("1d", "86400s"), ("1.5m", "90s"), ("0.25s", "0.25s")),
        *((datetime.timedelta(minutes=10), "600s"), (datetime.timedelta(milliseconds=1), "0.001s")),
    ],
)
def test_steps_and_times_between_checkpoints_have_one_form(value, interval):
    config = RunConfig(checkpoint_every=value)
    assert (config.checkpoint_every, config.interval) == (interval, interval)
    assert RunConfig().interval == "600s"


@pytest.mark.parametrize(
    "value",
    [
        *(0, 1.5, True, None, "", "-5", "10 m", "1e400s", "0s", "1m30s", datetime.timedelta(0)),
    ],
)
def test_what_is_neither_steps_nor_a_time_is_refused_with_examples(value):
    with raises(ConfigError, "checkpoint-every-invalid") as refused:
        RunConfig(checkpoint_every=value)
    assert all(example in str(refused.value) for example in ("30s", "10m", "2h", "'off'"))


def test_names_to_allow_are_known_ones_each_once_in_order():
    assert RunConfig().allow == ()
    assert RunConfig(allow="shards").allow == ("shards",)
    assert RunConfig(allow=["threads", "data", "threads"]).allow == ("data", "threads")
    for value in (["seed"], "seed", [3]):
        with raises(ConfigError, "unknown-name"):
            RunConfig(allow=value)
    for value in (None, 3):
        with raises(ConfigError, "allow-invalid"):
            RunConfig(allow=value)


def test_settings_that_mean_the_same_may_be_given_twice():
    command = {"checkpoint_every": "600s", "allow": ["threads", "data"]}
    script = {"checkpoint_every": datetime.timedelta(minutes=10), "allow": ("data", "threads")}
    merged = RunConfig.merge(command, script)
    assert (merged.interval, merged.allow) == ("600s", ("data", "threads"))
    for name, value in (("checkpoint_every", 600), ("allow", "data"), ("fresh", True), ("keep", 3)):
        with raises(ConfigError, "setting-conflict"):
            RunConfig.merge({name: value}, {"fresh": False, "keep": 2, **script})
