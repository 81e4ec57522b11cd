"""Promises about the environment: it is read once, in one place, and what a launcher set wrong is named."""

import pytest

from lockstep.errors import ConfigError
from lockstep.world import SETTINGS, STORE, TERMINAL, World, read_environment

pytestmark = pytest.mark.timeout(20)
TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
}


def world(**environ):
    return read_environment(environ).world


def test_a_process_that_nobody_launched_is_alone():
    assert world() == World()
    assert world(RANK="3") == World(), "a RANK without a WORLD_SIZE is somebody else's"


def test_torchrun_says_it_all():
    assert world(**TORCHRUN) == World(
        rank=5, world_size=8, local_rank=1, local_world_size=4, node_rank=1, num_nodes=2, launcher="torchrun"
    )


def test_lockstep_run_adds_where_to_meet():
    found = world(**{STORE: "/private/store", "RANK": "1", "WORLD_SIZE": "2"})
    assert (found.launcher, found.store_path) == ("lockstep", "/private/store")
    assert (found.rank, found.local_rank, found.local_world_size, found.num_nodes) == (1, 1, 2, 1)


def test_what_a_simple_launcher_leaves_out_is_worked_out():
    found = world(RANK="5", WORLD_SIZE="6", LOCAL_WORLD_SIZE="4")
    assert (found.launcher, found.local_rank, found.node_rank, found.num_nodes) == ("env", 1, 1, 2)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is ''"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 with WORLD_SIZE=2: ranks go from 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "ranks go from 0 to 1"),
        ({**TORCHRUN, "LOCAL_RANK": "a"}, "LOCAL_RANK is 'a'"),
    ],
)
def test_a_variable_that_is_not_what_it_should_be_is_named(environ, words):
    with pytest.raises(ConfigError, match=words):
        read_environment(environ)


@pytest.mark.parametrize("environ", [{"WORLD_SIZE": "0", "RANK": "0"}, {**TORCHRUN, "LOCAL_WORLD_SIZE": "0"}])
def test_a_size_below_one_is_named(environ):
    with pytest.raises(ConfigError, match="SIZE"):
        read_environment(environ)


def test_settings_come_from_the_launcher_as_json():
    assert read_environment({SETTINGS: '{"seed": 3}'}).settings == {"seed": 3}
    assert read_environment({}).settings == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_settings_that_are_not_a_json_object_are_named(text):
    with pytest.raises(ConfigError, match=SETTINGS):
        read_environment({SETTINGS: text})


@pytest.mark.parametrize(("environ", "terminal"), [({}, None), ({TERMINAL: "1"}, True), ({TERMINAL: "0"}, False)])
def test_whether_there_is_a_terminal_is_the_launchers_word(environ, terminal):
    assert read_environment(environ).terminal is terminal
