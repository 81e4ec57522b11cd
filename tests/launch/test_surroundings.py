"""What the caller's environment says of another launcher: refused where several trainings would
come of it, else said."""

import pytest
from slurm_variables import ALONE, JOB, TASK

from lockstep._base.errors import ConfigError
from lockstep._launch.surroundings import check_surroundings

MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "1"}
HOROVOD = {"HOROVOD_SIZE": "4", "HOROVOD_RANK": "1"}


def check(environ, *, on_nodes=False, is_typed=False):
    return check_surroundings(environ, on_nodes=on_nodes, is_typed=is_typed)


@pytest.mark.parametrize(
    ("environ", "launcher"),
    [(MPI, "mpirun"), (MPICH, "mpirun"), (HOROVOD, "horovodrun"), (TASK, "srun")],
)
def test_a_command_that_another_launcher_has_started_several_times_is_refused(environ, launcher):
    with pytest.raises(ConfigError, match=rf"{launcher} has started this command 4 times.*SCRIPT, once; or python SCRIPT"):
        check(environ)
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
    assert check(TASK, is_typed=True).startswith("the environment says rank 3 of 4, which is not used")


def test_ranks_of_somebody_else_are_said_to_be_left_out():
    said = check({"RANK": "1", "WORLD_SIZE": "2"})
    assert said.startswith("the environment says rank 1 of 2, which is not used")
    assert "--node-rank" in said


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"},
    ],
)
def test_nothing_is_said_where_nobody_else_is_or_a_worker_launches(environ):
    assert check(environ) is None
