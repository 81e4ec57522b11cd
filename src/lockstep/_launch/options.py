"""How ``lockstep run`` starts processes: one frozen value, checked when it is created."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockstep._base.errors import ConfigError
from lockstep._base.option import MACHINES, OUTPUT, PROCESSES, TORCHRUN, one_of, option
from lockstep._launch.binding import BINDINGS
from lockstep._launch.restarts import check_max_restarts
from lockstep._launch.source import LOCAL_RANK_OPTIONS

SPAWNS = ("auto", "yes", "no")
"""Whether a script starts its processes itself; ``auto``: determined from its source."""
PASS_LOCAL_RANK = ("auto", "none", *LOCAL_RANK_OPTIONS)


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How a script is started. (The settings of the run itself are in ``RunConfig``.)"""

    nproc_per_node: str | int | None = option(None, "--nproc-per-node", "--nproc", group=PROCESSES, metavar="N")
    """Processes per machine: a number, gpu (one per CUDA GPU), cpu (one per core), or auto (gpu, else cpu).  [default: one
    per CUDA GPU, else one]"""
    is_module: bool = option(False, "-m", "--module", group=PROCESSES)
    """Run SCRIPT as a module, as python -m does."""
    max_restarts: int = option(0, group=PROCESSES, metavar="N")
    """Maximum number of times that all processes are restarted after one has failed.  [default: 0]"""
    bind: str = option("none", group=PROCESSES, metavar=one_of(BINDINGS))
    """Bind each process and its loader workers to the CPUs near its GPU, as torchrun --numa-binding does.  [default: none]"""
    pass_local_rank: str = option("auto", group=PROCESSES, metavar=one_of(PASS_LOCAL_RANK))
    """Pass the local rank to the script as this option. auto: if the script defines one of the two.  [default: auto]"""
    spawns: str = option("auto", group=PROCESSES, metavar=one_of(SPAWNS))
    """Whether the script starts its own processes (mp.spawn); if so it is run once, as by python.
    auto: determined from its
    source.  [default: auto]"""

    nnodes: str | None = option(None, group=MACHINES, metavar="N|MIN:MAX")
    """Number of machines. Run the same command on each, except for --node-rank. With MIN:MAX,
    machines may join and
    leave.  [default: 1]"""
    node_rank: int | None = option(None, group=MACHINES, metavar="R")
    """Number of this machine, from 0."""
    master_addr: str | None = option(None, group=MACHINES, metavar="HOST")
    """Host name or IP address of machine 0, reachable from the others."""
    master_port: int | None = option(None, group=MACHINES, metavar="PORT")
    """TCP port on machine 0 where the others connect.  [default: 29500; with one machine, a free one, passed to scripts in
    MASTER_PORT]"""
    rdzv_endpoint: str | None = option(None, group=MACHINES, metavar="HOST:PORT")
    """Rendezvous of machines without --node-rank, the same on each: the address of one of them, and
    a free port there."""
    rdzv_id: str | None = option(None, group=MACHINES, metavar="NAME")
    """Name that distinguishes runs that share a rendezvous endpoint.  [default: none]"""
    rdzv_backend: str | None = option(None, group=MACHINES, metavar="[c10d|static]")
    """Accepted for torchrun compatibility: c10d goes with --rdzv-endpoint, static with --node-rank
    and --master-addr."""
    rdzv_secret_file: str | None = option(None, group=MACHINES, metavar="FILE")
    """File with the secret shared by the launchers of the run (or set LOCKSTEP_SECRET).  [default: a new secret, in a file
    beside the run directory, which all machines must be able to read]"""

    log_dir: Path | None = option(None, group=OUTPUT, metavar="DIR")
    """Write the output of rank R to DIR/rank-R.log instead of the terminal."""
    tee: bool = option(False, group=OUTPUT)
    """Prefix each line with its rank; with --log-dir, also show it on the terminal."""
    reports: Path | None = option(None, group=OUTPUT, metavar="FILE")
    """Append each warning about a stuck or slow rank, and each failure, to FILE as a line of JSON:
    kind, ranks, cause, places."""
    attach: int | None = option(None, group=OUTPUT, metavar="RANK")
    """Connect this rank to the terminal, so that breakpoint() works.  [default: none]"""

    is_executable: bool = option(False, "--no-python", group=TORCHRUN)
    """Run SCRIPT as a program, without Python."""
    use_env: bool = option(False, group=TORCHRUN)
    """Same as --pass-local-rank none."""
    redirects: str | None = option(None, "-r", "--redirects", group=TORCHRUN, metavar="3")
    """Accepted for torchrun compatibility: requires --log-dir, which redirects both streams."""
    tee_streams: str | None = option(None, "-t", group=TORCHRUN, metavar="3")
    """Same as --tee."""
    standalone: bool = option(False, group=TORCHRUN)
    """Accepted for torchrun compatibility; no effect: processes of one machine need no rendezvous
    options."""
    role: str | None = option(None, group=TORCHRUN, metavar="NAME")
    """Accepted for torchrun compatibility; no effect: all workers have one role."""
    monitor_interval: float | None = option(None, group=TORCHRUN, metavar="SECONDS")
    """Accepted for torchrun compatibility; no effect: the end of a worker is noticed at once."""
    start_method: str | None = option(None, group=TORCHRUN, metavar="[spawn|fork|forkserver]")
    """Accepted for torchrun compatibility; no effect: workers come from a fork server."""
    local_addr: str | None = option(None, group=TORCHRUN, metavar="ADDRESS")
    """Accepted for torchrun compatibility; no effect: the address is detected."""

    def __post_init__(self) -> None:
        for name, value, valid in (
            ("--pass-local-rank", self.pass_local_rank, PASS_LOCAL_RANK),
            ("--spawns", self.spawns, SPAWNS),
            # none or both; torchrun also takes single streams and ranks
            ("-r", self.redirects, (None, "0", "3")),
            ("-t", self.tee_streams, (None, "0", "3")),
        ):
            if value not in valid:
                raise ConfigError(
                    f"{name} {value}: choose one of {', '.join(choice for choice in valid if choice is not None)}"
                )
        if self.redirects == "3" and self.log_dir is None:
            raise ConfigError(
                "-r 3 without a directory: --log-dir DIR writes both streams of rank R to DIR/rank-R.log. Give it, or leave -r "
                "out"
            )
        check_max_restarts(self.max_restarts)

    @property
    def shows_ranks(self) -> bool:
        """Whether each line of output is prefixed with its rank."""
        return self.tee or self.tee_streams == "3"

    @property
    def local_rank_option(self) -> str:
        """One of ``PASS_LOCAL_RANK``."""
        return "none" if self.use_env else self.pass_local_rank
