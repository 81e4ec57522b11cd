"""What is wasted in a job, or too little, is said with its numbers and a remedy; what fits is not
spoken of."""

import dataclasses

import pytest
from slurm_variables import JOB, TASK

from lockstep._joining.startup.allotment import misfits
from lockstep._world.environment import World, read_environment

pytestmark = pytest.mark.timeout(20)

FITS = {**TASK, "SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "6", "SLURM_GPUS_ON_NODE": "2"}


def said(environ, *, own=3, gpus=2, each=1, workers=2):
    world = read_environment(environ).world
    # As on a node with many cores, whatever this machine has.
    world = dataclasses.replace(world, num_cores=world.job.num_cores(own))
    return misfits(world, num_cores=own, num_gpus=gpus, gpus_each=each, workers=workers)


def test_what_fits_is_not_spoken_of():
    assert said(FITS) == []
    assert said({**TASK, "SLURM_CPUS_PER_TASK": "3", "SLURM_CPUS_ON_NODE": "6"}, gpus=0, each=0) == []
    assert misfits(World(), num_cores=1, num_gpus=8, gpus_each=1, workers=9) == [], "outside of Slurm"


@pytest.mark.parametrize(
    ("changed", "options", "code", "values"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, {}, "gpus-idle", ("2 of 4 GPUs", "Start 4")),
        ({"SLURM_GPUS_ON_NODE": "1"}, {}, "gpus-shared", ("1 GPU", "Start 1")),
        ({"SLURM_GPUS_ON_NODE": "8"}, {"each": 2}, "gpus-idle", ("4 of 8 GPUs", "Start 4")),
        ({}, {"each": 0}, "gpus-unused", ("2 GPUs", World().host)),
        ({}, {"workers": 7}, "cores-below-workers", ("3 cores", "--cpus-per-task=8")),
        ({"SLURM_CPUS_PER_TASK": "12"}, {"own": 1}, "cores-not-passed-to-srun", ("1 core", "--cpus-per-task=12")),
        (
            {"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "1"},
            {"own": 1},
            "cores-below-processes",
            ("1 core for 2 processes", World().host),
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "1,3", "SLURM_GPUS_ON_NODE": "3"},
            {},
            "tasks-uneven",
            ("(host0 1, host1 3)", "--ntasks-per-node"),
        ),
        ({"SLURM_JOB_NUM_NODES": "3"}, {}, "nodes-idle", ("3 nodes", "uses 2")),
        ({"SLURM_CPUS_ON_NODE": "64"}, {}, "cores-idle", ("6 cores", "64")),
    ],
)
def test_what_does_not_fit_is_one_line_with_a_remedy(changed, options, code, values):
    [notice] = said({**FITS, **changed}, **options)
    assert notice.code == code
    assert all(value in notice.text for value in values), notice.text


def test_a_script_that_srun_was_forgotten_for_is_told():
    [notice] = said({**JOB, "SLURM_CPUS_ON_NODE": "8"}, own=8, gpus=0, each=0)
    assert (notice.code, "4 tasks" in notice.text) == ("not-started-by-srun", True)


def test_a_launcher_that_srun_has_multiplied_is_told():
    workers = {"LOCKSTEP_STORE": "/private/store", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    [notice] = said({**FITS, **workers}, own=6)
    assert (notice.code, "4 copies" in notice.text) == ("launcher-started-by-srun", True)
