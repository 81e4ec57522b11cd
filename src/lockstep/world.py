"""Who this process is among the processes of a run. The only file that reads the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.errors import ConfigError
from lockstep.job.job import STEP, Job, read_job
from lockstep.machine.cores import num_cores

SETTINGS = "LOCKSTEP_SETTINGS"
"""A JSON object of RunConfig fields: how a launcher hands the command line's settings to its workers."""
STORE = "LOCKSTEP_STORE"
"""Where the workers of ``lockstep run`` meet: a file of this machine or, of several machines, ``tcp://HOST:PORT/PREFIX``."""
TERMINAL = "LOCKSTEP_TERMINAL"
"""``1`` if what rank 0 prints goes to a terminal, although its own standard output may be a pipe."""

CALL = "LOCKSTEP_CALL"
"""Set where ``lockstep.launch`` runs a function in this process, and not a script of its own."""
LAUNCH = "LOCKSTEP_LAUNCH"
"""A name for one launch, the same for all of its restarts."""
SECRET = "LOCKSTEP_SECRET"
"""What the launchers of several machines sign with what they tell each other."""
CORES = "LOCKSTEP_CORES"
"""The cores of this machine that a launch may use, where its processes are bound to some of them each."""
OMP = "OMP_NUM_THREADS"
"""How many threads a process is to use, for OpenMP and all that goes by it."""
OMP_OF_LAUNCHER = "LOCKSTEP_OMP"
"""What ``lockstep run`` has set OMP_NUM_THREADS to, since the user has not: he has asked for nothing."""
_RESTART = "TORCHELASTIC_RESTART_COUNT"
_NUM_NODES = "GROUP_WORLD_SIZE"


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among the processes of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the processes of this node."""
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    launcher: str = "python"
    """Who started this process: ``lockstep``, ``torchrun``, ``horovodrun``, ``mpirun``, ``env`` (anyone who sets RANK and
    WORLD_SIZE), ``submitit`` (its local executor), ``slurm`` (``srun``, as one of several tasks), ``hand`` (the script said
    which rank it is), or ``python``."""
    unsaid: frozenset[str] = frozenset()
    """Names of the fields above that nobody said: they are those of one process a machine until the
    processes meet, and see who is where."""
    is_program: bool = True
    """Whether this process runs a script, that the same command would run again."""
    launch: str = ""
    """A name for this launch, the same when its processes were started again; empty: none was given."""
    restart: int = 0
    """How many times the launcher has started the processes of this launch before."""
    store_path: str | None = None
    """Where workers of one machine meet without opening a port, by ``lockstep run``."""
    launchers_store: str | None = None
    """Where workers of several machines meet, by ``lockstep run``: ``tcp://HOST:PORT/PREFIX``."""
    job_dir: str | None = None
    """A directory that the processes of one job of ``mpirun`` on one machine have for themselves, if it makes one."""
    master: tuple[str, str] | None = None
    """MASTER_ADDR and MASTER_PORT, as they are set; None: the first is not."""
    num_cores: int | None = None
    """The cores of this machine that the run may use, if the launcher has bound its processes; None: as they see it."""
    job: Job | None = None
    """The job of Slurm that this process belongs to, whoever has started it there."""

    def by_hand(self, rank: int | None, world_size: int | None) -> World:
        """The world of a process whose script says which rank it is, of how many; with None for both, this one.

        Raises:
            ConfigError: one is missing, is no such number, or the launcher says otherwise.
        """
        if rank is None and world_size is None:
            return self
        if rank is None or world_size is None:
            missing = "world_size" if world_size is None else "rank"
            raise ConfigError(f"join(rank={rank}, world_size={world_size}): {missing} is missing, give both or none")
        _check_rank("rank", rank, "world_size", world_size)
        if self.launcher == "python":
            unsaid = frozenset({"local_rank", "local_world_size", "node_rank", "num_nodes"})
            return World(
                rank=rank,
                world_size=world_size,
                node_rank=rank,
                num_nodes=world_size,
                launcher="hand",
                unsaid=unsaid,
                num_cores=self.num_cores,
                job=self.job,
            )
        if (rank, world_size) != (self.rank, self.world_size):
            raise ConfigError(
                f"join(rank={rank}, world_size={world_size}), and {self.launcher} started this process as rank {self.rank} of "
                f"{self.world_size}: neither may win silently. Leave out one of the two."
            )
        return self

    @property
    def host(self) -> str:
        """The name of this machine."""
        return socket.gethostname()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """All that lockstep takes from the environment variables, read once."""

    world: World
    settings: Mapping[str, Any]
    """What the launcher's command line asked for (names of RunConfig fields)."""
    terminal: bool | None
    """Whether the launcher shows rank 0's output on a terminal; None: as it seems to this process."""
    threads: int | None = None
    """OMP_NUM_THREADS, as far as the user has set it."""


@dataclass(frozen=True)
class _Row:
    """The variables of one launcher. Those from ``local_rank`` on need not be set."""

    launcher: str
    mark: str
    """The variable that gives it away."""
    rank: str = "RANK"
    world_size: str = "WORLD_SIZE"
    local_rank: str = "LOCAL_RANK"
    local_world_size: str = "LOCAL_WORLD_SIZE"
    node_rank: str = "GROUP_RANK"


# The first row whose mark is set is taken. (A script that mpirun starts may find RANK and WORLD_SIZE of somebody else: of
# the cluster's queue, say.)
_LAUNCHERS = (
    _Row("lockstep", STORE),
    _Row("torchrun", "TORCHELASTIC_RUN_ID"),
    _Row(
        "horovodrun",
        "HOROVOD_RANK",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
    ),
    _Row(  # Open MPI; its NODE_RANK is something else
        "mpirun",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "",
    ),
    _Row("mpirun", "PMI_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),  # MPICH and its kin
    _Row("env", "WORLD_SIZE"),
    _Row(  # on this machine; on Slurm its tasks are srun's
        "submitit",
        "SUBMITIT_LOCAL_GLOBALID",
        "SUBMITIT_LOCAL_GLOBALID",
        "SUBMITIT_LOCAL_NTASKS",
        "SUBMITIT_LOCAL_LOCALID",
        "SUBMITIT_LOCAL_NTASKS",
        "SUBMITIT_LOCAL_NODEID",
    ),
)

VARIABLES = frozenset(
    {SETTINGS, STORE, TERMINAL, LAUNCH, CALL, CORES, OMP_OF_LAUNCHER, STEP}.union(
        *(dataclasses.astuple(row)[1:] for row in _LAUNCHERS)
    )
    - {""}
)
"""What tells a process its place in a run, under any launcher, and how to run. MASTER_ADDR is not among them."""


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"the environment variable {name} is {text!r}, which is not a whole number: "
            "the launcher that started this process must set it"
        ) from None


def _check_rank(rank_name: str, rank: int, size_name: str, world_size: int) -> None:
    if world_size < 1:
        raise ConfigError(f"{size_name}={world_size}: a number of processes is 1 or more")
    if not 0 <= rank < world_size:
        raise ConfigError(f"{rank_name}={rank} with {size_name}={world_size}: ranks go from 0 to {world_size - 1}")


def _read_world(environ: Mapping[str, str]) -> World:
    row, job = next((row for row in _LAUNCHERS if row.mark in environ), None), read_job(environ)
    if row is not None and row.launcher == "submitit" and environ.get(row.world_size) == "1":
        row = None  # a job of one task: whatever starts processes in it is their launcher
    cores = None if job is None else job.num_cores(num_cores())
    if job is not None and job.step is not None and (row is None or _is_of_slurm(row, environ, job)):
        return _task_of(job, environ, cores)
    if row is None:
        return World(num_cores=cores, job=job)
    rank, size = _integer(environ, row.rank), _integer(environ, row.world_size)
    _check_rank(row.rank, rank, row.world_size, size)
    store = environ.get(STORE, "")
    told_all = row.launcher in ("lockstep", "torchrun")
    local_size = _integer(environ, row.local_world_size, size if told_all else 1)
    if local_size < 1:
        raise ConfigError(f"{row.local_world_size}={local_size}: a number of processes is 1 or more")
    unsaid = {
        field
        for field, name in (
            ("local_rank", row.local_rank),
            ("local_world_size", row.local_world_size),
            ("node_rank", row.node_rank),
            ("num_nodes", row.node_rank),
        )
        if name not in environ
    }
    if told_all or (local_size == size and "local_world_size" not in unsaid):
        unsaid.clear()
    return World(
        rank=rank,
        world_size=size,
        local_rank=_integer(environ, row.local_rank, rank % local_size),
        local_world_size=local_size,
        node_rank=_integer(environ, row.node_rank, rank // local_size),
        num_nodes=_integer(environ, _NUM_NODES, -(-size // local_size)) if told_all else -(-size // local_size),
        launcher=row.launcher,
        unsaid=frozenset(unsaid),
        is_program=CALL not in environ,
        launch=environ.get(LAUNCH, ""),
        restart=_integer(environ, _RESTART, 0),
        store_path=None if "://" in store else environ.get(STORE),
        launchers_store=store if "://" in store else None,
        job_dir=_job_dir(environ) if row.launcher == "mpirun" else None,
        master=_master(environ),
        num_cores=_integer(environ, CORES) if CORES in environ else cores,
        job=job,
    )


def _is_of_slurm(row: _Row, environ: Mapping[str, str], job: Job) -> bool:
    """Whether the variables of a launcher are srun's own (``--mpi=pmi2``), or no more than a part of it was set by hand."""
    assert job.step is not None
    if row.launcher == "env":
        return row.rank not in environ and environ[row.world_size] == str(job.step.num_tasks)
    said = (environ.get("PMI_RANK"), environ.get("PMI_SIZE"))
    return row.mark == "PMI_SIZE" and said == (str(job.step.rank), str(job.step.num_tasks))


def _task_of(job: Job, environ: Mapping[str, str], cores: int | None) -> World:
    """The world of a task that srun has started. (One task alone is a process that nobody has launched.)"""
    step = job.step
    assert step is not None
    return World(
        rank=step.rank,
        world_size=step.num_tasks,
        local_rank=step.local_rank,
        local_world_size=step.tasks_here,
        node_rank=step.node_rank,
        num_nodes=len(step.hosts),
        launcher="slurm" if step.num_tasks > 1 else "python",
        is_program=CALL not in environ,
        master=_master(environ),
        num_cores=cores,
        job=job,
    )


def _master(environ: Mapping[str, str]) -> tuple[str, str] | None:
    return (environ["MASTER_ADDR"], environ.get("MASTER_PORT", "")) if environ.get("MASTER_ADDR") else None


def _job_dir(environ: Mapping[str, str]) -> str | None:
    """Open MPI gives each mpirun a directory on each machine, which it removes at the end, and numbers its jobs."""
    parent, job = environ.get("PMIX_SERVER_TMPDIR"), environ.get("PMIX_NAMESPACE")
    return f"{parent}/lockstep-{job}" if parent and job else None


def threads_asked(environ: Mapping[str, str], name: str = OMP) -> int | None:
    """The number of threads that a variable asks for (of several, for regions within regions, the first); None: none."""
    first = environ.get(name, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def _threads_of_user(environ: Mapping[str, str], world: World) -> int | None:
    """What OMP_NUM_THREADS asks for, unless a launcher has set it because the user has not.

    Such a number must not count: torchrun says 1 where it starts several processes, and nothing where it starts one, so that
    another number of processes would be another number of threads.
    """
    asked = threads_asked(environ)
    if asked is None or environ.get(OMP_OF_LAUNCHER) == environ[OMP]:
        return None
    if world.launcher == "torchrun" and asked == 1 and world.local_world_size > 1:
        return threads_asked(_before_torchrun(environ["TORCHELASTIC_RUN_ID"]))
    return asked


def _before_torchrun(run_id: str) -> Mapping[str, str]:
    """The environment that torchrun was started with; empty: it cannot be read."""
    import psutil

    with contextlib.suppress(psutil.Error, OSError):
        for process in psutil.Process().parents():
            # That of a process's start, without what it has set since. Between torchrun and here there may be others.
            environ: dict[str, str] = process.environ()
            if environ.get("TORCHELASTIC_RUN_ID") != run_id:
                return environ
    return {}


def read_secret() -> str | None:
    """LOCKSTEP_SECRET, for a launcher of several machines; None: it is not set, or empty."""
    return os.environ.get(SECRET) or None


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """What the launcher set. ``environ`` is for tests; a run reads ``os.environ``, once.

    Raises:
        ConfigError: a variable is not what it should be.
    """
    environ = os.environ if environ is None else environ
    text = environ.get(SETTINGS, "{}")
    try:
        settings = json.loads(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise ConfigError(f"the environment variable {SETTINGS} is {text!r}, which is not a JSON object")
    world = _read_world(environ)
    terminal = environ[TERMINAL] == "1" if TERMINAL in environ else None
    if terminal is None and world.launcher == "mpirun":
        terminal = False  # Open MPI gives processes a terminal of its own, wherever their output goes from there
    return Environment(
        world=world,
        settings=settings,
        terminal=terminal,
        threads=_threads_of_user(environ, world),
    )
