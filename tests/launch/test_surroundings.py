"""What the caller's environment says of another launcher: refused where several trainings would come of it, else said."""

import pytest

from lockstep.errors import ConfigError
from lockstep.launch.surroundings import check_horovod, check_surroundings


@pytest.mark.parametrize(
    ("name", "launcher"),
    [("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpirun"), ("HOROVOD_SIZE", "horovodrun")],
)
def test_a_command_that_another_launcher_has_started_several_times_is_refused(name, launcher):
    with pytest.raises(ConfigError, match=rf"{launcher} has started this command 4 times .*{launcher} -np 4 python SCRIPT"):
        check_surroundings({name: "4"}, on_nodes=False)
    assert check_surroundings({name: "1"}, on_nodes=False) is None
    assert check_surroundings({name: "4"}, on_nodes=True) is None


def test_ranks_of_somebody_else_are_said_to_be_left_out():
    said = check_surroundings({"RANK": "1", "WORLD_SIZE": "2"}, on_nodes=False)
    assert said.startswith("RANK=1 and WORLD_SIZE=2 in the environment are not used")
    assert "--node-rank" in said


@pytest.mark.parametrize("environ", [{}, {"WORLD_SIZE": "1"}, {"RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}])
def test_nothing_is_said_where_nobody_else_is_or_a_worker_launches(environ):
    assert check_surroundings(environ, on_nodes=False) is None


SCRIPT = "import horovod.torch as hvd\nhvd.init()\n"


def test_a_script_of_horovods_own_is_told_who_starts_it(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    with pytest.raises(ConfigError, match=r"train.py, line 2, calls hvd.init.* horovodrun -np 3 python train.py"):
        check_horovod(path, "train.py", 3)
    check_horovod(path, "train.py", 1)
    path.write_text(SCRIPT + "import lockstep\nlockstep.join()\n")
    check_horovod(path, "train.py", 3)
    path.write_text("print('hvd.init()')")
    check_horovod(path, "train.py", 3)
