"""What the caller's environment says of another launcher: refused where several trainings would come of it, else said."""

import pytest

from lockstep.errors import ConfigError
from lockstep.launch.surroundings import check_surroundings as check

MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}
MPICH = {"PMI_SIZE": "4", "PMI_RANK": "1"}
HOROVOD = {"HOROVOD_SIZE": "4", "HOROVOD_RANK": "1"}


@pytest.mark.parametrize(("environ", "launcher"), [(MPI, "mpirun"), (MPICH, "mpirun"), (HOROVOD, "horovodrun")])
def test_a_command_that_another_launcher_has_started_several_times_is_refused(environ, launcher):
    with pytest.raises(ConfigError, match=rf"{launcher} has started this command 4 times.*{launcher} -np 4 python SCRIPT"):
        check(environ, on_nodes=False)
    assert check(environ, on_nodes=True) is None
    alone = {name: "1" if name.endswith("SIZE") else "0" for name in environ}
    assert check(alone, on_nodes=False) is None


def test_ranks_of_somebody_else_are_said_to_be_left_out():
    said = check({"RANK": "1", "WORLD_SIZE": "2"}, on_nodes=False)
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
    assert check(environ, on_nodes=False) is None
