"""What Slurm's variables say of a job, and what they do not."""

import pytest
from codes import raises
from slurm_variables import ALONE, JOB, TASK

from lockstep._base.errors import ConfigError
from lockstep._world.job.job import Job, Step, read_job

pytestmark = pytest.mark.timeout(20)


def test_without_slurm_there_is_no_job():
    assert read_job({"PATH": "/bin"}) is None


def test_a_batch_script_is_in_a_job_and_in_no_step():
    assert read_job(JOB) == Job(number="12", num_nodes=2, num_tasks=4, cpus_here=2)
    assert read_job(JOB).name == "slurm 12.batch"


def test_a_task_knows_its_place():
    step = read_job(TASK).step
    assert step == Step(
        number="0",
        rank=3,
        num_tasks=4,
        local_rank=1,
        node_rank=1,
        hosts=("host0", "host1"),
        tasks=(2, 2),
        cpus_per_task=None,
    )
    assert read_job(TASK).name == "slurm 12.0"


def test_unequal_nodes_are_told_apart():
    environ = {**TASK, "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "1,2", "SLURM_PROCID": "2"}
    assert read_job(environ).step.tasks == (1, 2)
    assert read_job(environ).step.tasks_here == 2


def test_a_requeued_task_of_an_array_is_the_same_part_as_before():
    before = read_job({**TASK, "SLURM_ARRAY_TASK_ID": "3"})
    after = read_job({**TASK, "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1"})
    assert (before.name, before.part, before.restart) == (after.name, "array task 3", 0)
    assert after.restart == 1
    assert read_job(TASK).part == ""


@pytest.mark.parametrize(
    ("changed", "code", "named"),
    [
        ({"SLURM_PROCID": "4"}, "slurm-contradicts", "SLURM_PROCID=4"),
        ({"SLURM_STEP_NUM_TASKS": "5"}, "slurm-contradicts", "SLURM_STEP_NUM_TASKS=5"),
        ({"SLURM_NODEID": "2"}, "slurm-contradicts", "SLURM_NODEID=2"),
        ({"SLURM_LOCALID": "2"}, "slurm-contradicts", "SLURM_LOCALID=2"),
        ({"SLURM_STEP_NODELIST": "host[0-"}, "slurm-variable-invalid", "SLURM_STEP_NODELIST is 'host[0-'"),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, "slurm-variable-invalid", "SLURM_STEP_TASKS_PER_NODE is 'two'"),
        ({"SLURM_RESTART_COUNT": "x"}, "slurm-variable-invalid", "SLURM_RESTART_COUNT is 'x'"),
    ],
)
def test_a_variable_that_somebody_else_has_set_is_named(changed, code, named):
    with raises(ConfigError, code) as caught:
        read_job({**TASK, **changed})
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "own", "cores"),
    [
        (TASK, 1, 2),  # each is bound to one
        (TASK, 64, 2),  # not bound, and no number asked for: what the step has here
        ({**TASK, "SLURM_CPUS_PER_TASK": "3"}, 64, 6),
        ({**TASK, "SLURM_CPUS_PER_TASK": "3"}, 3, 6),  # bound to its own
        ({**TASK, "SLURM_CPUS_PER_TASK": "12"}, 1, 2),  # srun was not told: one each
        ({**ALONE, "SLURM_CPUS_PER_TASK": "12"}, 64, 12),
        ({**JOB, "SLURM_CPUS_ON_NODE": "12"}, 64, 12),
        ({**JOB, "SLURM_CPUS_ON_NODE": "12"}, 8, 8),
        ({**JOB, "SLURM_CPUS_ON_NODE": ""}, 8, None),
    ],
)
def test_the_cores_of_a_node_are_those_of_its_tasks_together(environ, own, cores):
    assert read_job(environ).num_cores(own) == cores
