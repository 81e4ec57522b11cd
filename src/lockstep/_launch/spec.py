"""What workers run, and in which environment: plain values, passed to the fork server in a file."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep._base.config import RunConfig
from lockstep._world.environment import ASKED, CALL, CORES, LAUNCH, OMP, OMP_OF_LAUNCHER, SECRET, SETTINGS, STORE, TERMINAL
from lockstep._world.machine.cores import num_cores

PRIVATE_DIR = "LOCKSTEP_PRIVATE_DIR"
"""The variable with the launch's private directory, by which its processes are recognized."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script or module that runs as ``__main__``, or a program."""

    target: str
    """Path of the script (or program) as the user wrote it, or the name of a module."""
    is_module: bool = False
    args: tuple[str, ...] = ()
    local_rank_option: str | None = None
    """An option for the local rank, put before ``args``, for scripts of
    ``torch.distributed.launch``."""
    starter: str | None = None
    """The call by which the script starts its processes itself; None: it does not, and the workers
    are its processes."""
    is_executable: bool = False
    """Whether ``target`` is a program, found as a shell would find it."""
    has_optimizer: bool = False
    """Whether each worker will import what PyTorch imports with the first optimizer."""
    guesses: tuple[str, ...] = ()
    """Conclusions from the script's source, each with what overrides it: one line each, for the
    user."""

    def arguments(self, local_rank: int) -> list[str]:
        """The arguments on its command line."""
        first = [f"{self.local_rank_option}={local_rank}"] if self.local_rank_option else []
        return [*first, *self.args]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A pickled function call."""

    payload: bytes
    main_path: str | None = None
    """The caller's script, if the payload refers to definitions there: it is imported first, as
    ``__mp_main__``."""
    main_module: str | None = None
    """The name of the module that started the launch with ``python -m``."""
    sys_path: tuple[str, ...] = ()
    sys_argv: tuple[str, ...] = ()
    by_value: bool = False
    """Whether the payload was pickled by cloudpickle, and the result must be."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """This machine's part in a start on several machines."""

    number: int
    """The node's number, from 0."""
    num_nodes: int
    first_rank: int
    """The first rank of its processes."""
    world_size: int
    """The number of processes on all machines."""
    master_addr: str
    """The address of rank 0's machine."""
    store: str
    """The rendezvous of lockstep scripts' workers, in the launchers' store:
    ``tcp://HOST:PORT/PREFIX``."""
    run_id: str
    """The user's name for the run."""
    interface: str
    """The network interface towards the other machines; empty: unknown."""
    secret: str
    """The secret by which the ranks recognize each other."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What the workers of a launch have in common. Each start replaces the fields that differ
    between starts."""

    program: Script | Call
    nproc: int
    private_dir: str
    """A directory that only this user can enter, for the workers' rendezvous, failures and results.
    New for each start."""
    name: str = ""
    """Unique to this launch: that of its first private directory. Restarts keep it."""
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The launcher's environment."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The requested fields of ``RunConfig``."""
    cwd: str = field(default_factory=lambda: str(Path.cwd()))
    master_port: int = 0
    """The port of rank 0's store for scripts that use ``env://``; 0, before a start: any free
    port."""
    terminal: bool = False
    """Whether rank 0 writes to a terminal."""
    restart: int = 0
    """Number of earlier starts of the workers."""
    max_restarts: int = 0
    bind: str = "none"
    """The kind of binding of each process to CPUs near its GPU (one of ``binding.BINDINGS``)."""
    node: Node | None = None
    """This machine among several; None: it is the only one."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """The caller's requests to the run, by instrument: see ``_joining/instrument.py``."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", Path(self.private_dir).name)

    @property
    def config(self) -> RunConfig:
        """The settings, as far as they are known before the script runs."""
        return RunConfig.merge(self.settings, {})

    @property
    def ranks(self) -> range:
        """The ranks of this machine's processes."""
        first = self.node.first_rank if self.node else 0
        return range(first, first + self.nproc)

    @property
    def world_size(self) -> int:
        """The number of processes on all machines."""
        return self.node.world_size if self.node else self.nproc

    def local_rank(self, rank: int) -> int:
        """The local rank of a rank."""
        return rank - self.ranks.start

    def save(self) -> str:
        """Writes the spec into the private directory, for the workers; returns the path."""
        path = Path(self.private_dir, "spec.pickle")
        path.write_bytes(pickle.dumps(self))
        return str(path)

    @staticmethod
    def load(path: str) -> LaunchSpec:
        """Reads what ``save`` wrote."""
        spec = pickle.loads(Path(path).read_bytes())
        assert isinstance(spec, LaunchSpec)
        return spec


HASH_SEED = "0"
"""Python draws a seed for the hashes of text in every process, and with it the order of a set. A
script that numbers words by ``enumerate(set(words))`` would give them other numbers on another host
and after a resume. (Forked workers have the seed of their fork server; the variable is for what
they start themselves.)"""


def worker_environ(spec: LaunchSpec, rank: int) -> dict[str, str]:
    """The environment of a worker: the launcher's, with the variables that torchrun would set.

    A script that starts its processes itself gets none with ranks, which it, or its processes,
    would take for their own."""
    program, node = spec.program, spec.node
    of_launchers = [STORE, LAUNCH, CALL, CORES]  # this launcher may be a worker of another
    if STORE in spec.environ:
        of_launchers.append(ASKED)  # that other one's run is what it was asked of
    environ = {
        **{name: value for name, value in spec.environ.items() if name not in of_launchers},
        PRIVATE_DIR: spec.private_dir,
        SETTINGS: json.dumps(dict(spec.settings)),
        TERMINAL: "1" if spec.terminal else "0",
        "PYTHONHASHSEED": spec.environ.get("PYTHONHASHSEED", HASH_SEED),
    }
    if spec.asked:
        environ[ASKED] = json.dumps(dict(spec.asked))
    if isinstance(program, Script) and program.starter is not None:
        return environ
    environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(spec.local_rank(rank)),
        "ROLE_RANK": str(rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_WORLD_SIZE": str(spec.nproc),
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "ROLE_NAME": "default",
        "GROUP_RANK": str(node.number if node else 0),
        "GROUP_WORLD_SIZE": str(node.num_nodes if node else 1),
        "MASTER_ADDR": node.master_addr if node else "127.0.0.1",
        "MASTER_PORT": str(spec.master_port),
        # By these, scripts and libraries see that a launcher has started all processes.
        "TORCHELASTIC_RUN_ID": node.run_id if node else spec.name,
        "TORCHELASTIC_RESTART_COUNT": str(spec.restart),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        # No agent keeps a store for env://: rank 0 opens it, on the port that is reserved for it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        # Deterministic products of cuBLAS need it, before the first of them: without it they are
        # refused.
        "CUBLAS_WORKSPACE_CONFIG": spec.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": spec.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        # With one machine, no port of Gloo may be reachable from others, unless the user wants
        # that.
        "GLOO_SOCKET_IFNAME": spec.environ.get("GLOO_SOCKET_IFNAME") or (node.interface if node else "lo"),
        STORE: node.store if node else os.path.join(spec.private_dir, "store"),  # noqa: PTH118
        LAUNCH: spec.name,
    }
    if node:
        environ[SECRET] = node.secret
    if not environ["GLOO_SOCKET_IFNAME"]:
        del environ["GLOO_SOCKET_IFNAME"]
    if spec.bind != "none":  # numbers of threads must not depend on it
        environ[CORES] = str(num_cores())
    if isinstance(program, Call):
        environ[CALL] = "1"
    elif program.is_executable and spec.nproc > 1 and OMP not in environ:
        # It loads libraries anew, whose numbers of threads can be set by variables only.
        environ[OMP] = environ[OMP_OF_LAUNCHER] = str(max(1, num_cores() // spec.nproc))
    return environ
