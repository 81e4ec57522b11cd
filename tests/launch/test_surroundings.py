"""What the caller's environment says of another launcher or of other machines: refused where it
would make several trainings of one, else a notice."""

import pytest
from codes import raises
from slurm_variables import ALONE, JOB, TASK

from lockstep._base.errors import ConfigError
from lockstep._launch.surroundings import check_surroundings

MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "1"}
HOROVOD = {"HOROVOD_SIZE": "4", "HOROVOD_RANK": "1"}


POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "29500"}
JOBSET = {"RANK": "1", "MASTER_ADDR": "pod-0", "MASTER_PORT": "29500", "JOB_COMPLETION_INDEX": "1"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
DSTACK = {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2", "DSTACK_MASTER_NODE_IP": "10.0.0.1"}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "4"}


def check(environ, *, on_nodes=False, is_alone=False, is_typed=False):
    return check_surroundings(environ, on_nodes=on_nodes, is_alone=is_alone, is_typed=is_typed)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [(MPI, "mpirun"), (MPICH, "mpirun"), (HOROVOD, "horovodrun"), (TASK, "srun")],
)
def test_a_command_that_another_launcher_has_started_several_times_is_refused(environ, launcher):
    for is_typed in (False, *([] if launcher == "srun" else [True])):  # others give the terminal to all
        with raises(ConfigError, "started-several-times") as caught:
            check(environ, is_typed=is_typed)
        assert str(caught.value).startswith(f"{launcher} ")
    assert check(environ, on_nodes=True) is None


@pytest.mark.parametrize(
    "environ",
    [
        *({name: "1" if name.endswith("SIZE") else "0" for name in environ} for environ in (MPI, MPICH, HOROVOD)),
        ALONE,
        {**ALONE, "SLURM_ARRAY_TASK_ID": "3"},
        # the batch script itself, or what one types after salloc, however many tasks the job has
        JOB,
    ],
)
def test_one_that_it_has_started_once_is_not(environ):
    assert check(environ) is None


def test_a_command_that_somebody_types_in_the_terminal_of_several_tasks_is_alone_there():
    assert "rank 3 of 4" in check(TASK, is_typed=True)


def test_ranks_of_somebody_else_are_said_to_be_left_out():
    assert "rank 1 of 2" in check({"RANK": "1", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("environ", "command"),
    [
        (
            POD,
            "lockstep run --nnodes $WORLD_SIZE --node-rank $RANK --master-addr $MASTER_ADDR --master-port $MASTER_PORT SCRIPT",
        ),
        ({**POD, "LOCAL_RANK": "0"}, "python SCRIPT"),  # one process each, as Azure ML starts them
        (JOBSET, "--node-rank $RANK --master-addr $MASTER_ADDR"),
    ],
)
def test_a_command_in_one_of_several_pods_is_refused_with_the_right_one(environ, command):
    with raises(ConfigError, "one-of-several") as caught:
        check(environ)
    assert command in str(caught.value)
    assert check(environ, on_nodes=True) is None
    assert check(environ, is_typed=True), "a user tries something in a pod"


@pytest.mark.parametrize("environ", [POD, JOBSET])
def test_a_user_who_asks_for_one_machine_gets_it(environ):
    check(environ, is_alone=True)
    check({**environ, "LOCKSTEP_ASKED": '{"verify": {}}'})  # as does a command that makes trials


@pytest.mark.parametrize(
    ("environ", "option"),
    [
        (SKYPILOT, "--node-rank $SKYPILOT_NODE_RANK"),
        (DSTACK, "--node-rank $DSTACK_NODE_RANK"),
        (SAGEMAKER, "--master-addr algo-1"),
    ],
)
def test_variables_of_several_machines_that_nothing_reads_are_named_with_the_command(environ, option):
    assert option in check(environ)
    assert check(environ, on_nodes=True) is None


@pytest.mark.parametrize(
    "environ", [{**SKYPILOT, "SKYPILOT_NUM_NODES": "1"}, {"SM_HOSTS": '["algo-1"]'}, {"SM_HOSTS": "["}, {"RANK": "x"}]
)
def test_nothing_is_said_of_one_machine_or_of_what_cannot_be_read(environ):
    assert check(environ) is None


def test_launchers_that_contradict_each_other_are_refused():
    with raises(ConfigError, "launchers-contradict"):
        check({**POD, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"},
    ],
)
def test_nothing_is_said_where_nobody_else_is_or_a_worker_launches(environ):
    assert check(environ) is None
