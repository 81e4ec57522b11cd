"""This process's place among the processes of a run. The only module that reads environment
variables.

Launchers leave no other trace of themselves than variables, and one may run inside another. So a
table of launchers is read from the top, and the first launcher whose variable is set started this
process::

    launcher    its variable            how ranks find each other       what it sets of machines
    lockstep    LOCKSTEP_STORE          the file or store that it names             all
    torchrun    TORCHELASTIC_RUN_ID     the agent's store (env://)                  all
    horovodrun  HOROVOD_RANK            Horovod's own rendezvous                    all
    mpirun      OMPI_COMM_WORLD_SIZE,   MASTER_ADDR, otherwise a file,              local ranks
                or PMI_SIZE             on one machine
    env         WORLD_SIZE              MASTER_ADDR                                 local ranks
    slurm       SLURM_STEP_ID           MASTER_ADDR, otherwise a file on one        all
                                        machine, or a port of the first host
    python      none                    it is the only rank

``slurm`` comes after the others, although a job's variables reach every process below it: ``srun``
may start a launcher, whose workers are ranks of that launcher. Fields that a launcher does not set
are completed at the rendezvous (``World.unsaid``)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep._base.errors import ConfigError
from lockstep._world.job.job import STEP, Job, read_job
from lockstep._world.job.several import Several, read_several
from lockstep._world.machine.cores import num_cores

SETTINGS = "LOCKSTEP_SETTINGS"
"""A JSON object of settings of the run, by which a launcher passes the command line's settings to
its workers."""
STORE = "LOCKSTEP_STORE"
"""The rendezvous of ``lockstep run``'s workers: a file on this machine or, for several machines,
``tcp://HOST:PORT/PREFIX``."""
TERMINAL = "LOCKSTEP_TERMINAL"
"""``1`` if rank 0's output is shown on a terminal, even if its standard output is a pipe."""

CALL = "LOCKSTEP_CALL"
"""A mark of a process in which ``lockstep.launch`` runs a function, rather than a script."""
LAUNCH = "LOCKSTEP_LAUNCH"
"""The name of a launch, the same for all of its restarts."""
ASKED = "LOCKSTEP_ASKED"
"""The requests of a command that starts a run to learn something from it (``verify``, ``compare``,
``replay``, ``tune``): a JSON object, by instrument (see ``_joining/instrument.py``). Nothing
of such a run goes to trackers."""
FAILURE = "LOCKSTEP_FAILURE"
"""The file to which a run that a trial has started reports a failure (see ``_events/failure.py``).
"""
SECRET = "LOCKSTEP_SECRET"
"""The secret with which the launchers of several machines sign their messages."""
CORES = "LOCKSTEP_CORES"
"""The number of cores of this machine for the launch, if its processes are bound to subsets of
them."""
OMP = "OMP_NUM_THREADS"
"""The number of threads per process, for OpenMP and libraries that follow it."""
OMP_OF_LAUNCHER = "LOCKSTEP_OMP"
"""The value to which ``lockstep run`` has set OMP_NUM_THREADS, if the user has not."""
TRACEBACK = "LOCKSTEP_TRACEBACK"
"""``full``: errors are shown with their whole traceback, as Python prints it; otherwise with the
user's own frames."""
_RESTART = "TORCHELASTIC_RESTART_COUNT"
_NUM_NODES = "GROUP_WORLD_SIZE"


@dataclass(frozen=True, kw_only=True)
class World:
    """This process's place among the processes of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the processes on this node."""
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    launcher: str = "python"
    """The launcher of this process: ``lockstep``, ``torchrun``, ``horovodrun``, ``mpirun``, ``env``
    (anything that sets RANK and WORLD_SIZE), ``slurm`` (``srun``, as one of several tasks),
    ``hand`` (the script passed the rank), or ``python``."""
    unsaid: frozenset[str] = frozenset()
    """Names of the fields above that the launcher did not set. They have the values for one process
    per machine until the processes have exchanged their machines at the rendezvous."""
    is_program: bool = True
    """Whether this process runs a script, which the same command would run again."""
    launch: str = ""
    """The name of this launch, the same after restarts; empty: it has none."""
    restart: int = 0
    """Number of restarts of this launch so far."""
    store_path: str | None = None
    """The rendezvous file of ``lockstep run``'s workers on one machine, which needs no port."""
    launchers_store: str | None = None
    """The store of ``lockstep run``'s workers on several machines: ``tcp://HOST:PORT/PREFIX``."""
    job_dir: str | None = None
    """The private directory of an ``mpirun`` job on one machine, if it creates one."""
    master: tuple[str, str] | None = None
    """MASTER_ADDR and MASTER_PORT, as set; None: the first is not set."""
    num_cores: int | None = None
    """Number of cores of this machine for the run, if the launcher has bound its processes; None:
    not bound."""
    job: Job | None = None
    """The Slurm job of this process, whatever started it there."""

    def by_hand(self, rank: int | None, world_size: int | None) -> World:
        """The world of a process whose script gives its rank and world size; with None for both,
        this one.

        Raises:
            ConfigError: one of them is missing or invalid, or the launcher has set other values.
        """
        if rank is None and world_size is None:
            return self
        if rank is None or world_size is None:
            missing = "world_size" if world_size is None else "rank"
            raise ConfigError(
                f"join(rank={rank}, world_size={world_size}): {missing} is missing. Pass both or neither",
                code="join-rank-incomplete",
            )
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
                f"{self.world_size}: these conflict. Set the rank in one place.",
                code="rank-contradicts-launcher",
            )
        return self

    @property
    def host(self) -> str:
        """The host name of this machine."""
        return socket.gethostname()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Everything that lockstep reads from environment variables."""

    world: World
    settings: Mapping[str, Any]
    """Settings from the launcher's command line, by field of RunConfig."""
    terminal: bool | None
    """Whether the launcher shows rank 0's output on a terminal; None: unknown."""
    threads: int | None = None
    """OMP_NUM_THREADS, if the user has set it."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The requests of a command to this run, by instrument; empty: it is a run of the user's."""
    several: Several | None = None
    """Variables of a job of several machines that ``world`` does not use; None: there are none."""


@dataclass(frozen=True)
class _Row:
    """The variables of one launcher. Those from ``local_rank`` on are optional."""

    launcher: str
    mark: str
    """The variable by which the launcher is recognized."""
    rank: str = "RANK"
    world_size: str = "WORLD_SIZE"
    local_rank: str = "LOCAL_RANK"
    local_world_size: str = "LOCAL_WORLD_SIZE"
    node_rank: str = "GROUP_RANK"
    needs: str = ""
    """A variable without which the mark is left over from a process further up."""


# The first row whose mark (and what it needs) is set applies. (Under mpirun, RANK and WORLD_SIZE
# may come from elsewhere: the cluster's queue, say.)
_LAUNCHERS = (
    _Row("lockstep", STORE),
    # Its run id alone may be left over: of a pod's parent, or from a shell in a worker.
    _Row("torchrun", "TORCHELASTIC_RUN_ID", needs="LOCAL_WORLD_SIZE"),
    _Row(
        "horovodrun",
        "HOROVOD_RANK",
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
    ),
    _Row(  # Open MPI; its NODE_RANK has another meaning
        "mpirun",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "",
    ),
    # MPICH and derivatives
    _Row("mpirun", "PMI_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ""),
    _Row("env", "WORLD_SIZE"),
)

VARIABLES = frozenset(
    {SETTINGS, STORE, TERMINAL, LAUNCH, CALL, ASKED, CORES, OMP_OF_LAUNCHER, STEP}.union(
        *(dataclasses.astuple(row)[1:] for row in _LAUNCHERS)
    )
    - {""}
)
"""All variables that give a process its place in a run, under any launcher, except MASTER_ADDR and
MASTER_PORT."""
_OF_LAUNCHERS = ("TORCHELASTIC_", "SLURM_", "PMI_", "PMIX_", "OMPI_", "MPI_", "HOROVOD_", "MV2_")
"""The prefixes of further variables of launchers, by which libraries recognize them."""


@contextlib.contextmanager
def hidden_launcher() -> Iterator[None]:
    """Within the block, no variable shows that this process is one of several. See
    ``Team.hide_launcher``."""
    names = VARIABLES | {"MASTER_ADDR", "MASTER_PORT", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"}
    hidden = {name: value for name, value in os.environ.items() if name in names or name.startswith(_OF_LAUNCHERS)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"the environment variable {name} is {text!r}, which is not a whole number: "
            "the launcher that started this process must set it",
            code="variable-not-a-number",
        ) from None


def _check_rank(rank_name: str, rank: int, size_name: str, world_size: int) -> None:
    if world_size < 1:
        raise ConfigError(f"{size_name}={world_size}: a number of processes is 1 or more", code="world-size-invalid")
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"{rank_name}={rank} with {size_name}={world_size}: ranks go from 0 to {world_size - 1}",
            code="rank-out-of-range",
        )


def _read_world(environ: Mapping[str, str]) -> World:
    row = next((row for row in _LAUNCHERS if row.mark in environ and (not row.needs or row.needs in environ)), None)
    job = read_job(environ)
    cores = None if job is None else job.num_cores(num_cores())
    if job is not None and job.step is not None and (row is None or _is_of_slurm(row, environ, job)):
        return _task_of(job, environ, cores)
    if row is None:
        return World(num_cores=cores, job=job)
    rank, size = _integer(environ, row.rank), _integer(environ, row.world_size)
    _check_rank(row.rank, rank, row.world_size, size)
    if size == 1 and row.launcher in ("horovodrun", "mpirun"):
        _check_singleton(environ, row)
    store = environ.get(STORE, "")
    sets_all = row.launcher in ("lockstep", "torchrun")
    # A missing number means one machine under lockstep and torchrun. Under other launchers nothing
    # is known, and one process per machine is only assumed, until the rendezvous.
    local_size = _integer(environ, row.local_world_size, size if sets_all else 1)
    if local_size < 1:
        raise ConfigError(
            f"{row.local_world_size}={local_size}: a number of processes is 1 or more", code="world-size-invalid"
        )
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
    # If all processes are on this machine, the other fields follow: it is node 0 of 1.
    if sets_all or (local_size == size and "local_world_size" not in unsaid):
        unsaid.clear()
    return World(
        rank=rank,
        world_size=size,
        local_rank=_integer(environ, row.local_rank, rank % local_size),
        local_world_size=local_size,
        node_rank=_integer(environ, row.node_rank, rank // local_size),
        num_nodes=_integer(environ, _NUM_NODES, -(-size // local_size)) if sets_all else -(-size // local_size),
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


def _check_singleton(environ: Mapping[str, str], row: _Row) -> None:
    """Refuses a launcher's world of one process next to a larger WORLD_SIZE: which of them started
    this process cannot be known. (An image's entry point may run ``mpirun -np 1``; PALS and flux
    set PMI_SIZE=1 for a single process.)"""
    size = environ.get("WORLD_SIZE", "")
    if "RANK" in environ and size.isdecimal() and int(size) > 1:
        raise ConfigError(
            f"the environment has {row.world_size}=1 ({row.launcher}) and RANK={environ['RANK']} of WORLD_SIZE={size}: these "
            f"contradict each other. Remove the variables that do not apply: env -u {row.world_size}, or env -u WORLD_SIZE",
            code="launchers-contradict",
        )


def _is_of_slurm(row: _Row, environ: Mapping[str, str], job: Job) -> bool:
    """Whether the variables of a launcher were set by srun (``--mpi=pmi2``), or are incomplete."""
    assert job.step is not None
    if row.launcher == "env":
        return row.rank not in environ and environ[row.world_size] == str(job.step.num_tasks)
    pmi = (environ.get("PMI_RANK"), environ.get("PMI_SIZE"))
    return row.mark == "PMI_SIZE" and pmi == (str(job.step.rank), str(job.step.num_tasks))


def _task_of(job: Job, environ: Mapping[str, str], cores: int | None) -> World:
    """The world of a task started by srun. (A single task counts as a process without a
    launcher.)"""
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
    """The directory that Open MPI creates for each mpirun on each machine, with the number of the
    job."""
    parent, job = environ.get("PMIX_SERVER_TMPDIR"), environ.get("PMIX_NAMESPACE")
    return f"{parent}/lockstep-{job}" if parent and job else None


def threads_asked(environ: Mapping[str, str]) -> int | None:
    """OMP_NUM_THREADS (the first, of a list for nested regions); None: not set, or invalid."""
    outermost = environ.get(OMP, "").partition(",")[0].strip()
    return int(outermost) if outermost.isdecimal() and int(outermost) > 0 else None


def threads_of_user(environ: Mapping[str, str], world: World) -> int | None:
    """OMP_NUM_THREADS, unless it was set by a launcher rather than the user.

    A launcher's number must not count: torchrun sets 1 if it starts several processes, and nothing
    if it starts one, so another number of processes would mean another number of threads.
    """
    requested = threads_asked(environ)
    # The values are compared: a program under lockstep run may be a shell that sets OMP_NUM_THREADS
    # for the script that it starts, and LOCKSTEP_OMP is inherited.
    if requested is None or environ.get(OMP_OF_LAUNCHER) == environ[OMP]:
        return None
    if world.launcher == "torchrun" and requested == 1 and world.local_world_size > 1:
        return None
    return requested


def read_secret() -> str | None:
    """LOCKSTEP_SECRET, by which the launchers of several machines, and the ranks, recognize each
    other; None: not set, or empty."""
    return os.environ.get(SECRET) or None


def shows_tracebacks() -> bool:
    """Whether errors are shown with their whole traceback."""
    return os.environ.get(TRACEBACK) == "full"


def failure_file() -> str | None:
    """The file in which a failure of this program is recorded; None: it is not requested."""
    return os.environ.get(FAILURE) or None


def _object(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    text = environ.get(name, "{}")
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ConfigError(
            f"the environment variable {name} is {text!r}, which is not a JSON object", code="variable-not-json"
        )
    return content


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Reads the environment variables. ``environ`` is for tests; a run reads ``os.environ``, once.

    Raises:
        ConfigError: a variable has an invalid value.
    """
    environ = os.environ if environ is None else environ
    settings = _object(environ, SETTINGS)
    world = _read_world(environ)
    terminal = environ[TERMINAL] == "1" if TERMINAL in environ else None
    if terminal is None and world.launcher == "mpirun":
        # Open MPI connects processes to a pseudo-terminal, wherever it sends their output
        terminal = False
    return Environment(
        world=world,
        settings=settings,
        terminal=terminal,
        threads=threads_of_user(environ, world),
        asked=_object(environ, ASKED),
        # srun knows the number of tasks, also of a single one, which has no launcher here
        several=None if world.job is not None and world.job.step is not None else read_several(environ, world.launcher),
    )
