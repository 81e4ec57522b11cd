"""Instruments: found by name, notified by stage."""

import sys

import pytest
from codes import raises

from lockstep._base.config import merge_settings, options_of_tools
from lockstep._base.errors import ConfigError
from lockstep._joining.instrument import make_instruments
from lockstep._listener import EVENTS, Calls, Listener, Listeners, Stage


class Told(Listener):
    def __init__(self, stage, told):
        self.stage, self._told = stage, told

    def agreed(self, step):
        self._told.append((self.stage, step))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install(module_text, entry_point)``: a package that adds an instrument, or what else is
    named."""

    def run(module, point, kind="instruments", version=1):
        place = tmp_path / str(version)
        about = place / f"strange-{version}.dist-info"
        about.mkdir(parents=True)
        (place / "strange.py").write_text(module)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: strange\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(f"[lockstep.{kind}]\nstrange = {point}\n")
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.delitem(sys.modules, "strange", raising=False)
        options_of_tools.cache_clear()

    yield run
    options_of_tools.cache_clear()


def test_whatever_the_loop_calls_is_an_event_of_listeners():
    assert vars(Calls)["__annotations__"].keys() <= set(EVENTS)


def test_listeners_are_notified_by_stage_and_then_as_they_came():
    told = []
    listeners = Listeners([Told(Stage.LATE, told), Told(Stage.NORMAL, told)])
    listeners.agreed(1)
    listeners.add([Told(Stage.LATE, told), Told(Stage.EARLY, told)])
    listeners.agreed(2)
    assert told == [(Stage.NORMAL, 1), (Stage.LATE, 1), *((stage, 2) for stage in (*Stage, Stage.LATE))]


def test_an_instrument_of_another_package_is_made_with_what_is_asked_of_it(install):
    install("class Strange:\n    def __init__(self, asked):\n        self.asked = asked\n", "strange:Strange")
    assert [type(each).__name__ for each in make_instruments({"strange": 7}).values() if each.asked == 7] == ["Strange"]


def test_of_two_versions_of_a_package_the_one_that_is_imported_counts(install):
    install("", "strange:Lost", version=1)
    install("class Strange:\n    def __init__(self, asked):\n        self.asked = asked\n", "strange:Strange", version=2)
    assert [type(each).__name__ for each in make_instruments({"strange": 7}).values() if each.asked == 7] == ["Strange"]


def test_an_instrument_that_cannot_be_imported_is_named(install):
    install("import nothing_of_this_name", "strange:Strange")
    with raises(ConfigError, "extension-import-failed") as caught:
        make_instruments({})
    assert "'strange'" in str(caught.value)
    assert "nothing_of_this_name" in str(caught.value)


def test_what_is_asked_of_an_instrument_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="unknown instrument 'nothing'"):
        make_instruments({"nothing": {}})


OPTIONS = """
from dataclasses import dataclass
from lockstep._base.option import TRAINING, check_options, option

@dataclass(frozen=True, kw_only=True)
class Strange:
    NAME: int = option(0, group=TRAINING, least=0)
    __post_init__ = check_options
"""


def test_options_of_another_package_are_settings(install):
    install(OPTIONS.replace("NAME", "strangeness"), "strange:Strange", "options")
    assert merge_settings({"strangeness": 3}, {}).tools["strange"].strangeness == 3
    with pytest.raises(ConfigError, match="strangeness=-1"):
        merge_settings({}, {"strangeness": -1})


@pytest.mark.parametrize("name", ["audit", "shards"])
def test_options_of_another_package_that_are_settings_already_are_refused(install, name):
    install(OPTIONS.replace("NAME", name), "strange:Strange", "options")
    with raises(ConfigError, "option-defined-twice") as refused:
        merge_settings({}, {})
    assert repr(name) in str(refused.value)
