"""Processes that meet as if they had been started by hand: forked by a warm server, and rid of what
a launcher sets."""

import os
import signal
import socket
import tempfile
import time

import psutil
import torch

import lockstep

OF_LAUNCHERS = (
    "LOCKSTEP_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "MASTER_",
    "TORCHELASTIC_",
    "GLOO_SOCKET_IFNAME",
)


def _be_nobody(**variables):
    """Forget the launcher; returns the rank and number of processes that it gave."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    for name in [name for name in os.environ if name.startswith(OF_LAUNCHERS)]:
        del os.environ[name]
    os.environ.update(variables)
    return rank, size


def _run(rank, size, url, **settings):
    with lockstep.join(
        rank=rank, world_size=size, init_method=url, threads=1, progress="off", run_dir=f"run-{size}", **settings
    ) as team:
        return _sum(team)


def _sum(team):
    world = team.world
    places = (world.local_rank, world.local_world_size, world.node_rank, world.num_nodes)
    return team.all_reduce(torch.tensor(2.0**team.rank)).item(), places, team._transport.interface


def _told(call):
    """An error's type, code and message, and how long it took to come."""
    began = time.monotonic()
    try:
        return f"no error: {call()}", 0.0
    except lockstep.LockstepError as error:
        return f"{type(error).__name__} {error.code}: {error}", time.monotonic() - began


def meet(url, delays=(0.0, 0.0, 0.0), **settings):
    rank, size = _be_nobody()
    time.sleep(delays[rank])
    return _run(rank, size, url, timeout_s=20.0, **settings)


def meet_by_variables(url, variables):
    rank, size = _be_nobody(**variables)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    with lockstep.join(init_method=url, threads=1, progress="off", run_dir="run", timeout_s=20.0) as team:
        return _sum(team)


def meet_under_mpich(directory):
    """As hydra, MPICH's launcher, starts processes: they share a parent, and it makes no directory
    for them."""
    rank, size = _be_nobody(TMPDIR=str(directory))
    tempfile.tempdir = None  # look at TMPDIR again
    local = {"MPI_LOCALRANKID": str(rank), "MPI_LOCALNRANKS": str(size)}
    os.environ.update(PMI_RANK=str(rank), PMI_SIZE=str(size), **local)
    with lockstep.join(threads=1, progress="off", run_dir="run", timeout_s=20.0) as team:
        return team.world.launcher, _sum(team)


def meet_under_srun(directory, hosts, job="12", restart="0"):
    """As srun starts tasks, of which each of ``hosts`` has as many as the others."""
    rank, size = _be_nobody(TMPDIR=str(directory))
    tempfile.tempdir = None
    each = size // len(hosts)
    place = {"PROCID": rank, "LOCALID": rank % each, "NODEID": rank // each}
    step = {"ID": 0, "NUM_TASKS": size, "NODELIST": ",".join(hosts), "TASKS_PER_NODE": f"{each}(x{len(hosts)})"}
    told = {"JOB_ID": job, "RESTART_COUNT": restart, **place, **{f"STEP_{name}": value for name, value in step.items()}}
    os.environ.update({f"SLURM_{name}": str(value) for name, value in told.items()})
    with lockstep.join(threads=1, progress="off", run_dir=f"run-{job}", timeout_s=20.0) as team:
        return team.world.launcher, _sum(team)[:2]


def meet_again_and_again(url, times):
    rank, size = _be_nobody()
    return [_run(rank, size, url, timeout_s=20.0)[0] for _ in range(times)]


def meet_and_die(url):
    """Both ranks are killed once they have met."""
    rank, size = _be_nobody()
    team = lockstep.join(rank=rank, world_size=size, init_method=url, progress="off", run_dir="run")
    team.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def come_as(url, roles, timeout_s=3.0):
    """Each process comes as the rank, and one of the number, that its role says."""
    rank, _ = _be_nobody()
    if roles[rank] is None:
        return None
    rank, size = roles[rank]
    return _told(lambda: _run(rank, size, url, timeout_s=timeout_s))


def listening_while_open(url):
    """The addresses at which this process listens."""
    rank, size = _be_nobody()
    with lockstep.join(rank=rank, world_size=size, init_method=url, progress="off", run_dir="run", timeout_s=20.0):
        found = psutil.Process().net_connections(kind="inet")
        return sorted({one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN})


def come_to_a_place_in_use(url, kind):
    """Another program listens at the port: rank 0 (``taken``), or rank 1 that comes to it
    (``silent``)."""
    _be_nobody()
    port = int(url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        return _told(lambda: _run(int(kind != "taken"), 2, url, timeout_s=2.0))
