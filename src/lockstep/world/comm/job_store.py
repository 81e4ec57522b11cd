"""The rendezvous of a Slurm step's tasks on several nodes, at a port derived from the numbers of job and step."""

from __future__ import annotations

import contextlib
import itertools

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from lockstep.base.errors import ConfigError, PeerError
from lockstep.world.comm.tcp import forget, tcp_store
from lockstep.world.comm.waiter import Waiter
from lockstep.world.job.job import Job

_PORTS = range(10_000, 32_000)
"""Below the range of ephemeral ports."""
_TRIES = 4
_KNOCK_S = 1.0


def job_ports(job: str, step: str) -> list[int]:
    """The ports for the rendezvous of a job step, most preferred first. Jobs and steps with nearby numbers have none in
    common."""
    first = int(job) * _TRIES + int(step) * 997 * _TRIES
    return [_PORTS[(first + number) % len(_PORTS)] for number in range(_TRIES)]


def serve_job_store(job: Job, host: str, waiter: Waiter) -> TCPStore:
    """Start the store on rank 0: at the first free port, on the address by which other nodes know its host.

    Raises:
        ConfigError: no port can be used.
    """
    errors: list[str] = []
    for port in _ports_of(job):
        try:
            store = tcp_store(host, port, waiter)
        except ConfigError as error:
            errors.append(str(error))
            continue
        store.set(_name(job), "")
        return store
    raise ConfigError(
        f"none of the {_TRIES} ports of this job can be used. {errors[0]}. Or name one in MASTER_PORT, with MASTER_ADDR."
    )


def find_job_store(job: Job, host: str, waiter: Waiter) -> TCPStore:
    """Find the store of this job (and not that of another job at one of its ports) from ranks other than 0.

    Raises:
        PeerError: rank 0 did not start it within the timeout.
    """
    for port in itertools.cycle(_ports_of(job)):
        with contextlib.suppress(PeerError, DistError):  # the port is closed, or serves something else
            store = tcp_store(host, port, Waiter(waiter.rank, waiter.world_size, waiter.endpoint, _KNOCK_S))
            if store.check([_name(job)]):
                return store
        forget(host, port, waiter.rank)
        waiter.pause(lambda: [0])
    raise AssertionError


def _ports_of(job: Job) -> list[int]:
    assert job.step is not None
    return job_ports(job.number, job.step.number)


def _name(job: Job) -> str:
    return f"{job.name}/{job.restart}"
