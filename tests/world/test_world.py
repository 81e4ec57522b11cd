"""Promises about the environment: it is read once, in one place, and what a launcher set wrong is
named."""

import contextlib
import itertools
import os
from dataclasses import replace

import pytest
from codes import raises
from slurm_variables import ALONE, JOB, TASK

from lockstep._base.errors import ConfigError
from lockstep._world.environment import (
    CORES,
    OMP_OF_LAUNCHER,
    SECRET,
    SETTINGS,
    STORE,
    TERMINAL,
    World,
    hidden_launcher,
    read_environment,
    read_secret,
)

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


def test_a_launcher_says_how_many_machines_restarts_and_launches_there_are():
    found = world(**TORCHRUN, GROUP_WORLD_SIZE="3", TORCHELASTIC_RESTART_COUNT="2", LOCKSTEP_LAUNCH="name")
    assert (found.num_nodes, found.restart, found.launch) == (3, 2, "name")
    assert world(RANK="0", WORLD_SIZE="2", MASTER_ADDR="").master is None
    assert world(RANK="0", WORLD_SIZE="1").unsaid == PLACES, "that it is alone on its machine is only assumed"


def test_an_empty_secret_is_none(monkeypatch):
    for value, secret in (("", None), ("word", "word")):
        monkeypatch.setenv(SECRET, value)
        assert read_secret() == secret


def test_a_hidden_launcher_is_back_behind_the_block_also_after_an_error(monkeypatch):
    said = {**TORCHRUN, "MASTER_ADDR": "h", "SLURM_JOB_ID": "1", "PMIX_RANK": "0", "GROUP_WORLD_SIZE": "2", "MV2_COMM": "1"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with contextlib.suppress(ZeroDivisionError), hidden_launcher():
        assert said.keys().isdisjoint(os.environ)
        assert read_environment().world == World()
        raise ZeroDivisionError
    assert dict(os.environ) == before


def test_horovodrun_says_it_all_in_its_own_words():
    said = {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2"}
    found = world(**{f"HOROVOD_{name}": value for name, value in said.items()}, RANK="0", WORLD_SIZE="1")
    assert found == World(
        rank=3, world_size=4, local_rank=1, local_world_size=2, node_rank=1, num_nodes=2, launcher="horovodrun"
    )


def test_lockstep_run_adds_where_to_meet():
    found = world(**{STORE: "/private/store", "RANK": "1", "WORLD_SIZE": "2"})
    assert (found.launcher, found.store_path) == ("lockstep", "/private/store")
    assert (found.rank, found.local_rank, found.local_world_size, found.num_nodes) == (1, 1, 2, 1)
    elsewhere = world(**{STORE: "tcp://host:1/start-0", "RANK": "1", "WORLD_SIZE": "2"})
    assert (elsewhere.store_path, elsewhere.launchers_store) == (None, "tcp://host:1/start-0")


OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_NODE_RANK": "3",
}
PLACES = {"local_rank", "local_world_size", "node_rank", "num_nodes"}


INSIDE_OUT = {
    "lockstep": {
        STORE: "/private/store",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
    },
    "torchrun": TORCHRUN,
    "horovodrun": {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"},
    "mpirun": {**OPEN_MPI, "PMIX_SERVER_TMPDIR": "/tmp/pid.7", "PMIX_NAMESPACE": "123"},
    # srun --mpi=pmi2 sets the last two
    "slurm": {**TASK, "PMI_RANK": "3", "PMI_SIZE": "4"},
}
"""Launchers, each of which may have been started by those after it."""


@pytest.mark.parametrize(("inner", "outer"), [*itertools.combinations(INSIDE_OUT, 2)])
def test_of_a_launcher_inside_of_another_all_is_the_inner_ones(inner, outer):
    found = world(**{**INSIDE_OUT[outer], **INSIDE_OUT[inner]})
    assert replace(found, job=None, num_cores=None) == world(**INSIDE_OUT[inner])
    assert found.launcher == inner
    assert (found.job is not None) is (outer == "slurm")


@pytest.mark.parametrize("launcher", INSIDE_OUT)
def test_under_every_launcher_a_function_is_no_program_and_the_master_and_the_terminal_are_as_set(launcher):
    environ = INSIDE_OUT[launcher]
    assert world(**environ).is_program
    assert not world(**environ, LOCKSTEP_CALL="1").is_program
    assert world(**environ, MASTER_ADDR="host0", MASTER_PORT="5").master == ("host0", "5")
    for said, is_one in (("1", True), ("0", False)):
        assert read_environment({**environ, TERMINAL: said}).terminal is is_one
    one = world(**environ)
    assert one.by_hand(one.rank, one.world_size) == one
    with raises(ConfigError, "rank-contradicts-launcher"):
        one.by_hand(0, one.world_size)


def test_mpirun_says_it_all_on_one_machine():
    expected = World(rank=3, world_size=4, local_rank=3, local_world_size=4, launcher="mpirun")
    assert world(**OPEN_MPI) == expected
    assert world(**OPEN_MPI, RANK="0", WORLD_SIZE="2") == expected, "those are of a queue that started mpirun"
    assert world(PMI_RANK="3", PMI_SIZE="4", MPI_LOCALRANKID="3", MPI_LOCALNRANKS="4") == expected


def test_mpirun_does_not_say_which_of_several_machines_this_is():
    found = world(**{**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    assert (found.local_rank, found.local_world_size) == (1, 2)
    assert found.unsaid == {"node_rank", "num_nodes"}


def test_open_mpi_names_a_directory_of_the_job():
    found = world(**OPEN_MPI, PMIX_SERVER_TMPDIR="/tmp/ompi.host.0/pid.7", PMIX_NAMESPACE="123")
    assert found.job_dir == "/tmp/ompi.host.0/pid.7/lockstep-123"
    assert world(**OPEN_MPI).job_dir is None


def test_srun_says_it_all():
    found = world(**TASK)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (3, 4, 1, 2)
    assert (found.node_rank, found.num_nodes, found.launcher, found.unsaid) == (1, 2, "slurm", frozenset())
    assert world(**TASK, PMI_RANK="3", PMI_SIZE="4").launcher == "slurm", "those are srun's own, by --mpi=pmi2"
    assert world(**TASK, WORLD_SIZE="4").launcher == "slurm", "a batch script may set that for all"


@pytest.mark.parametrize("environ", [JOB, ALONE], ids=["batch script", "one task"])
def test_a_process_that_srun_has_not_multiplied_is_alone(environ):
    found = world(**environ)
    assert (found.rank, found.world_size, found.launcher) == (0, 1, "python")
    assert found.job.number == "12"
    numbered = found.by_hand(1, 2)
    assert (numbered.rank, numbered.world_size, numbered.job) == (1, 2, found.job), "one job a node, each with its number"


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("lockstep", {STORE: "/private/store", "RANK": "1", "WORLD_SIZE": "2"}),
        ("torchrun", TORCHRUN),
        ("mpirun", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "8"}),
        ("mpirun", {"PMI_RANK": "1", "PMI_SIZE": "8"}),  # its own, started by srun: one a node
        ("env", {"RANK": "1", "WORLD_SIZE": "8"}),
    ],
)
@pytest.mark.parametrize("environ", [JOB, TASK], ids=["in a batch script", "in a task of srun"])
def test_a_launcher_inside_of_a_job_is_the_one_that_counts(environ, launcher, variables):
    found = world(**environ, **variables)
    assert (found.launcher, found.rank, found.job.number) == (launcher, int(variables.get("RANK", "1")), "12")


def test_a_world_size_that_is_not_sruns_is_not_taken_for_it():
    with raises(ConfigError, "variable-not-a-number"):
        world(**TASK, WORLD_SIZE="8")


def test_what_a_simple_launcher_leaves_out_is_worked_out():
    found = world(RANK="5", WORLD_SIZE="6", LOCAL_WORLD_SIZE="4")
    assert (found.launcher, found.local_rank, found.node_rank, found.num_nodes) == ("env", 1, 1, 2)
    assert found.unsaid == PLACES - {"local_world_size"}


def test_rank_and_size_alone_say_nothing_of_machines():
    found = world(RANK="5", WORLD_SIZE="6")
    assert found.unsaid == PLACES
    assert (found.local_rank, found.local_world_size, found.num_nodes) == (0, 1, 6), "nothing is refused for a guess"
    assert world(RANK="1", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2").unsaid == frozenset()


def test_where_the_master_is_and_how_many_cores_there_are_is_read():
    assert world(RANK="0", WORLD_SIZE="2").master is None
    assert world(RANK="0", WORLD_SIZE="2", MASTER_ADDR="h", MASTER_PORT="1").master == ("h", "1")
    assert world(RANK="0", WORLD_SIZE="2", MASTER_ADDR="h").master == ("h", "")
    assert world(RANK="0", WORLD_SIZE="2", **{CORES: "8"}).num_cores == 8


def test_a_script_can_say_which_rank_it_is():
    assert World().by_hand(None, None) == World()
    found = World().by_hand(2, 3)
    assert (found.rank, found.world_size, found.launcher, found.unsaid) == (2, 3, "hand", PLACES)
    launched = world(**TORCHRUN)
    assert launched.by_hand(5, 8) == launched
    for rank, world_size in ((4, 8), (5, 6)):
        with raises(ConfigError, "rank-contradicts-launcher"):
            launched.by_hand(rank, world_size)
    assert World(num_cores=3).by_hand(2, 3).num_cores == 3


@pytest.mark.parametrize(
    ("found", "rank", "world_size", "code"),
    [
        (World(), 1, None, "join-rank-incomplete"),
        (World(), None, 2, "join-rank-incomplete"),
        (World(), 2, 2, "rank-out-of-range"),
        (World(), 0, 0, "world-size-invalid"),
        (world(**TORCHRUN), 4, 8, "rank-contradicts-launcher"),
        (world(RANK="0", WORLD_SIZE="2"), 1, 2, "rank-contradicts-launcher"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(found, rank, world_size, code):
    with raises(ConfigError, code):
        found.by_hand(rank, world_size)


@pytest.mark.parametrize(
    ("environ", "code", "named"),
    [
        ({"WORLD_SIZE": "2"}, "variable-not-a-number", "RANK"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "variable-not-a-number", "WORLD_SIZE"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "rank-out-of-range", "RANK=2"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "rank-out-of-range", "RANK=-1"),
        ({**TORCHRUN, "LOCAL_RANK": "a"}, "variable-not-a-number", "LOCAL_RANK"),
    ],
)
def test_a_variable_that_is_not_what_it_should_be_is_named(environ, code, named):
    with raises(ConfigError, code) as caught:
        read_environment(environ)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "one", [{"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, {"PMI_SIZE": "1", "PMI_RANK": "0"}]
)
def test_one_process_of_mpirun_next_to_a_larger_world_is_a_contradiction(one):
    with raises(ConfigError, "launchers-contradict"):
        world(**one, RANK="1", WORLD_SIZE="4")
    assert world(**one).world_size == world(**one, RANK="0", WORLD_SIZE="1").world_size == 1


def test_a_run_id_of_torchrun_that_is_left_over_is_not_torchrun():
    found = world(TORCHELASTIC_RUN_ID="none", RANK="1", WORLD_SIZE="2", MASTER_ADDR="pod-0")
    assert (found.launcher, found.local_rank, found.unsaid) == ("env", 0, PLACES)
    assert world(TORCHELASTIC_RUN_ID="none") == World()


@pytest.mark.parametrize(
    ("environ", "is_certain"),
    [
        ({"PET_NNODES": "2"}, True),
        ({"PET_NNODES": "1:2"}, True),
        ({"RANK": "1", "MASTER_ADDR": "pod-0"}, True),
        ({"RANK": "1"}, False),
        ({"PET_NPROC_PER_NODE": "2"}, False),
        ({"PET_NPROC_PER_NODE": "2", "RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "pod-0"}, False),
        ({"SKYPILOT_NUM_NODES": "2"}, False),
    ],
)
def test_variables_of_several_machines_that_a_process_does_not_use_are_found(environ, is_certain):
    several = read_environment(environ).several
    assert several.is_certain == is_certain
    assert all(name in several.found for name in environ if name != "MASTER_ADDR")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "auto"},
        {"PET_NNODES": "2", **TORCHRUN},
        {"PET_NNODES": "2", STORE: "/private/store", "RANK": "1", "WORLD_SIZE": "2"},
        {"PET_NPROC_PER_NODE": "2", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
        {"PET_NPROC_PER_NODE": "2", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
        {"SKYPILOT_NUM_NODES": "2", "RANK": "1", "WORLD_SIZE": "2"},
        # srun's only task, with a batch script's variables
        {**ALONE, "RANK": "0", "MASTER_ADDR": "host0"},
    ],
)
def test_nothing_is_found_where_a_launcher_uses_them_or_there_is_one_machine(environ):
    assert read_environment(environ).several is None


def test_settings_come_from_the_launcher_as_json():
    assert read_environment({SETTINGS: '{"seed": 3}'}).settings == {"seed": 3}
    assert read_environment({}).settings == {}


@pytest.mark.parametrize("text", ["{", "[]"])
def test_settings_that_are_not_a_json_object_are_named(text):
    with raises(ConfigError, "variable-not-json"):
        read_environment({SETTINGS: text})


@pytest.mark.parametrize(
    ("environ", "terminal"), [({}, None), ({TERMINAL: "1"}, True), ({TERMINAL: "0"}, False), (OPEN_MPI, False)]
)
def test_whether_there_is_a_terminal_is_the_launchers_word(environ, terminal):
    assert read_environment(environ).terminal is terminal


@pytest.mark.parametrize(
    ("said", "number"), [("4", 4), (" 4 ", 4), ("4,2", 4), ("", None), ("0", None), ("-1", None), ("many", None)]
)
def test_the_users_number_of_threads_is_what_openmp_reads(said, number):
    assert read_environment({"OMP_NUM_THREADS": said}).threads == number


def test_a_number_of_threads_that_a_launcher_has_set_is_not_the_users():
    assert read_environment({"OMP_NUM_THREADS": "4", OMP_OF_LAUNCHER: "4"}).threads is None
    assert read_environment({"OMP_NUM_THREADS": "2", OMP_OF_LAUNCHER: "4"}).threads == 2, "set again, by the program"
    assert read_environment({**TORCHRUN, "OMP_NUM_THREADS": "4"}).threads == 4
    assert read_environment({**TORCHRUN, "OMP_NUM_THREADS": "1"}).threads is None
    assert read_environment({**TORCHRUN, "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}).threads == 1
