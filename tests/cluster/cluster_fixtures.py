"""The fixtures ``cluster`` and ``slurm_cluster``, for a conftest.py.

One cluster of each kind serves the whole session. A test gets it whole, with nothing running on it,
may do anything to it, and fails if it leaves a process on a host or a job in Slurm's queue.
"""

import contextlib
import time

import psutil
import pytest
from cluster import Cluster, missing
from cluster.host import kill
from cluster.slurm import missing as slurm_missing
from host_nurseries import HostNurseries

GRACE_S = 5.0  # for what is on its way out when a test ends


@pytest.fixture(scope="session")
def _cluster(require, outlives_tests):
    require("cluster", missing())
    with Cluster(hosts=3) as cluster:
        outlives_tests(cluster.pid)
        yield cluster


@pytest.fixture(scope="session")
def _slurm_cluster(require, outlives_tests):
    require("cluster", missing())
    require("slurm", slurm_missing())
    with Cluster(hosts=2, slurm=True, gpus=4) as cluster:
        outlives_tests(cluster.pid)
        yield cluster


@pytest.fixture(scope="session")
def nurseries(_cluster, outlives_tests):
    """``nurseries.start(host, words, ...)``: ``lockstep run`` on a host of ``cluster``, without the
    time that imports take."""
    with contextlib.closing(HostNurseries(outlives_tests)) as made:
        yield made


@contextlib.contextmanager
def lent(cluster: Cluster):
    """Lend a cluster to one test."""
    usual = [dict(host.environment) for host in cluster.hosts]
    try:
        yield cluster
        left = wait_until_empty(cluster)
    finally:
        for process in cluster.processes():
            kill(process)
        for host, environment in zip(cluster.hosts, usual, strict=True):
            host.environment = environment
        left_jobs = cluster.mend()
    if left := left + [f"job {job}" for job in left_jobs]:
        pytest.fail("the test left on the hosts:\n  " + "\n  ".join(left), pytrace=False)


def wait_until_empty(cluster: Cluster) -> list[str]:
    """What still runs on the hosts when what is on its way out has gone."""
    deadline = time.monotonic() + GRACE_S
    while (left := [describe(process) for process in cluster.processes()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def describe(process) -> str:
    command = ""
    with contextlib.suppress(psutil.Error):  # gone meanwhile
        command = " ".join(process.cmdline())
    return f"process {process.pid}: {command}"


@pytest.fixture
def cluster(_cluster):
    """Three hosts, whole, until the test ends."""
    with lent(_cluster) as cluster:
        yield cluster


@pytest.fixture
def slurm_cluster(_slurm_cluster):
    """Two hosts with Slurm, which believes in four GPUs on each, until the test ends."""
    with lent(_slurm_cluster) as cluster:
        yield cluster
