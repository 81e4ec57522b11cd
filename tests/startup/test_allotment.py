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
    ("changed", "options", "words"),
    [
        ({"SLURM_GPUS_ON_NODE": "4"}, {}, "2 processes on {host} use 2 of 4 GPUs: the others stand idle. Start 4"),
        ({"SLURM_GPUS_ON_NODE": "1"}, {}, "2 processes on {host} share 1 GPU, and wait for each other: start 1"),
        ({"SLURM_GPUS_ON_NODE": "8"}, {"each": 2}, "use 4 of 8 GPUs: the others stand idle. Start 4"),
        ({}, {"each": 0}, "the job has 2 GPUs on {host}, and the run is on the CPU"),
        (
            {},
            {"workers": 7},
            "3 cores for each process, and 7 loader workers beside it: they wait for each other. Request --cpus-per-task=8",
        ),
        (
            {"SLURM_CPUS_PER_TASK": "12"},
            {"own": 1},
            "SLURM_CPUS_PER_TASK is 12, and this task may use 1 core: srun does not take",
        ),
        (
            {"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "1"},
            {"own": 1},
            "1 core for 2 processes on {host}: processes wait for each other, and a step takes many times as long",
        ),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "1,3", "SLURM_GPUS_ON_NODE": "3"},
            {},
            "the nodes have unequal numbers of tasks (host0 1, host1 3): those with fewer are used in part",
        ),
        ({"SLURM_JOB_NUM_NODES": "3"}, {}, "the job has 3 nodes, but the run is on 2 of them: the others stand idle"),
        (
            {"SLURM_CPUS_ON_NODE": "64"},
            {},
            "6 cores of 64 that the job has on {host} are for the run: the others stand idle",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_with_a_remedy(changed, options, words):
    [line] = said({**FITS, **changed}, **options)
    assert words.format(host=World().host) in line


def test_a_script_that_srun_was_forgotten_for_is_told():
    [line] = said({**JOB, "SLURM_CPUS_ON_NODE": "8"}, own=8, gpus=0, each=0)
    assert "the job has 4 tasks, but this process was not started by srun" in line


def test_a_launcher_that_srun_has_multiplied_is_told():
    workers = {"LOCKSTEP_STORE": "/private/store", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    [line] = said({**FITS, **workers}, own=6)
    assert "srun has started lockstep run 4 times, and each trains by itself" in line
