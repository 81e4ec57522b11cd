"""Compares the resources that Slurm allotted to the job with the resources that the run uses."""

from __future__ import annotations

from lockstep._base.reports import Notice
from lockstep._world.environment import World
from lockstep._world.job.job import Job
from lockstep._world.machine.sizes import counted


def misfits(world: World, *, num_cores: int, num_gpus: int, gpus_each: int, workers: int) -> list[Notice]:
    """Finds resources of the job that are idle or insufficient.

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


def _nodes(job: Job, world: World) -> list[Notice]:
    if job.step is None and world.launcher == "python" and job.num_tasks > 1:
        return [
            Notice(
                "not-started-by-srun",
                f"the job has {job.num_tasks} tasks, but the script was not started by srun, so only one task runs. Start it "
                "with srun.",
            )
        ]
    if job.step is not None and job.step.num_tasks > 1 and world.launcher == "lockstep" and world.num_nodes == 1:
        return [
            Notice(
                "launcher-started-by-srun",
                f"srun started {job.step.num_tasks} copies of lockstep run, and each trains separately. Let srun start "
                "python instead, or start lockstep run in one task.",
            )
        ]
    misfits = []
    if world.num_nodes < job.num_nodes:
        misfits.append(
            Notice(
                "nodes-idle",
                f"the job has {job.num_nodes} nodes, but the run uses {world.num_nodes}. Start a task on each (srun --nodes, "
                "--ntasks-per-node), or request fewer nodes.",
            )
        )
    if job.step is not None and len(set(job.step.tasks)) > 1:
        tasks_by_host = ", ".join(f"{host} {tasks}" for host, tasks in zip(job.step.hosts, job.step.tasks, strict=True))
        misfits.append(
            Notice(
                "tasks-uneven",
                f"nodes have different numbers of tasks ({_shortened(tasks_by_host)}), so those with fewer tasks are "
                "only partly used. Set one number for all nodes: --ntasks-per-node.",
            )
        )
    return misfits


def _gpus(world: World, gpus: int, gpus_each: int) -> list[Notice]:
    tasks, host = world.local_world_size, world.host
    if gpus_each == 0:
        if gpus == 0:
            return []
        return [
            Notice(
                "gpus-unused",
                f"the job has {counted(gpus, 'GPU')} on {host}, but the run uses the CPU. If that is intended (--device "
                "cpu), request no GPU. Otherwise check that PyTorch sees the GPUs (torch.cuda.is_available()).",
            )
        ]
    used = tasks * gpus_each
    if used < gpus:
        return [
            Notice(
                "gpus-idle",
                f"{counted(tasks, 'process', 'processes')} on {host} {'uses' if tasks == 1 else 'use'} {used} of {gpus} "
                f"GPUs. Start {gpus // gpus_each} processes (--ntasks-per-node), or request fewer GPUs (--gpus-per-node).",
            )
        ]
    if used > gpus > 0:
        return [
            Notice(
                "gpus-shared",
                f"{tasks} processes on {host} share {counted(gpus, 'GPU')} and wait for each other. Start "
                f"{gpus // gpus_each} (--ntasks-per-node), or request more GPUs (--gpus-per-node).",
            )
        ]
    return []


def _cores(job: Job, world: World, affinity: int, workers: int) -> list[Notice]:
    tasks, step = world.local_world_size, job.step
    cores = world.num_cores or affinity
    cpus_per_task = None if step is None else step.cpus_per_task
    misfits = []
    if cpus_per_task is not None and affinity < cpus_per_task:
        misfits.append(
            Notice(
                "cores-not-passed-to-srun",
                f"SLURM_CPUS_PER_TASK is {cpus_per_task}, but this task may use only {counted(affinity, 'core')}. srun "
                f"does not inherit the number from sbatch: pass it again (srun --cpus-per-task={cpus_per_task}).",
            )
        )
    elif cores < tasks:
        misfits.append(
            Notice(
                "cores-below-processes",
                f"{counted(cores, 'core')} for {tasks} processes on {world.host}: too few, so steps will be many times "
                f"slower. Request more: --cpus-per-task={1 + workers} or more.",
            )
        )
    elif cores // tasks < workers + 1:
        misfits.append(
            Notice(
                "cores-below-workers",
                f"{counted(cores // tasks, 'core')} for each process and its {counted(workers, 'loader worker')}: too "
                f"few, so they wait for each other. Request --cpus-per-task={1 + workers}, or use --workers "
                f"{max(0, cores // tasks - 1)}.",
            )
        )
    idle = (job.cpus_here or 0) - cores
    # From one idle core per process on: fewer could not be used by all.
    if not misfits and step is not None and idle >= max(2, tasks):
        misfits.append(
            Notice(
                "cores-idle",
                f"the run uses {counted(cores, 'core')} of the {job.cpus_here} that the job has on {world.host}. Use the "
                f"rest: --cpus-per-task={(job.cpus_here or 0) // tasks}, and more --workers.",
            )
        )
    return misfits


def _shortened(text: str, most: int = 200) -> str:
    return text if len(text) <= most else text[:most] + " ..."
