"""Comparing the resources that Slurm has allotted with those that the run uses."""

from __future__ import annotations

from lockstep._world.environment import World
from lockstep._world.job.job import Job
from lockstep._world.machine.sizes import counted


def misfits(world: World, *, num_cores: int, num_gpus: int, gpus_each: int, workers: int) -> list[str]:
    """Describe resources that are idle or insufficient: a line each, with a remedy.

    Args:
        world: rank 0's; outside of Slurm jobs there are no messages.
        num_cores: number of cores in this process's affinity mask.
        num_gpus: number of GPUs visible to this process.
        gpus_each: GPUs per process; 0: the run is on the CPU.
        workers: loader workers per process.
    """
    job = world.job
    if job is None:
        return []
    gpus = job.gpus_here if job.gpus_here is not None else num_gpus
    return [*_nodes(job, world), *_gpus(world, gpus, gpus_each), *_cores(job, world, num_cores, workers)]


def _nodes(job: Job, world: World) -> list[str]:
    if job.step is None and world.launcher == "python" and job.num_tasks > 1:
        return [
            f"the job has {job.num_tasks} tasks, but this process was not started by srun: the others do nothing. Start the "
            "script with srun"
        ]
    if job.step is not None and job.step.num_tasks > 1 and world.launcher == "lockstep" and world.num_nodes == 1:
        return [
            f"srun has started lockstep run {job.step.num_tasks} times, and each trains by itself: let srun start python in "
            "its place, or lockstep run in one task"
        ]
    messages = []
    if world.num_nodes < job.num_nodes:
        messages.append(
            f"the job has {job.num_nodes} nodes, but the run is on {world.num_nodes} of them: the others stand idle. Start a "
            "task on each (srun --nodes, --ntasks-per-node), or ask for fewer"
        )
    if job.step is not None and len(set(job.step.tasks)) > 1:
        tasks_by_host = ", ".join(f"{host} {tasks}" for host, tasks in zip(job.step.hosts, job.step.tasks, strict=True))
        messages.append(
            f"the nodes have unequal numbers of tasks ({_shortened(tasks_by_host)}): those with fewer are used in part. "
            "Give a number for all: --ntasks-per-node"
        )
    return messages


def _gpus(world: World, gpus: int, gpus_each: int) -> list[str]:
    tasks, host = world.local_world_size, world.host
    if gpus_each == 0:
        if gpus == 0:
            return []
        return [
            f"the job has {counted(gpus, 'GPU')} on {host}, and the run is on the CPU: is --device cpu intended, and does "
            "PyTorch see a GPU (torch.cuda.is_available())? If none is needed, request none"
        ]
    used = tasks * gpus_each
    if used < gpus:
        return [
            f"{counted(tasks, 'process', 'processes')} on {host} {'uses' if tasks == 1 else 'use'} {used} of {gpus} GPUs: "
            f"the others stand idle. Start {gpus // gpus_each} (--ntasks-per-node), or request fewer GPUs (--gpus-per-node)"
        ]
    if used > gpus > 0:
        return [
            f"{tasks} processes on {host} share {counted(gpus, 'GPU')}, and wait for each other: start {gpus // gpus_each} "
            "(--ntasks-per-node), or ask for more GPUs (--gpus-per-node)"
        ]
    return []


def _cores(job: Job, world: World, affinity: int, workers: int) -> list[str]:
    tasks, step = world.local_world_size, job.step
    cores = world.num_cores or affinity
    cpus_per_task = None if step is None else step.cpus_per_task
    messages = []
    if cpus_per_task is not None and affinity < cpus_per_task:
        messages.append(
            f"SLURM_CPUS_PER_TASK is {cpus_per_task}, and this task may use {counted(affinity, 'core')}: srun does "
            f"not take the number from sbatch, so give it again (srun --cpus-per-task={cpus_per_task})"
        )
    elif cores < tasks:
        messages.append(
            f"{counted(cores, 'core')} for {tasks} processes on {world.host}: processes wait for each other, and a step "
            f"takes many times as long. Request cores for each: --cpus-per-task={1 + workers} or more"
        )
    elif cores // tasks < workers + 1:
        messages.append(
            f"{counted(cores // tasks, 'core')} for each process, and {counted(workers, 'loader worker')} beside it: they "
            f"wait for each other. Request --cpus-per-task={1 + workers}, or take --workers {max(0, cores // tasks - 1)}"
        )
    idle = (job.cpus_here or 0) - cores
    if not messages and step is not None and idle >= max(2, tasks):
        messages.append(
            f"{counted(cores, 'core')} of {job.cpus_here} that the job has on {world.host} are for the run: the others "
            f"stand idle. Distribute them: --cpus-per-task={(job.cpus_here or 0) // tasks}, and more --workers"
        )
    return messages


def _shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[:most] + " ..."
