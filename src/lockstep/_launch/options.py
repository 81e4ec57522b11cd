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
"""The values of --spawns: whether the script starts its own processes. ``auto``: determined from
its source."""
PASS_LOCAL_RANK = ("auto", "none", *LOCAL_RANK_OPTIONS)
"""The values of --pass-local-rank."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options with which ``lockstep run`` starts a script. (The settings of the run itself are
    in ``RunConfig``.)"""

    nproc_per_node: str | int | None = option(None, "--nproc-per-node", "--nproc", group=PROCESSES, metavar="N")
    """Processes per machine: a number, gpu (one per CUDA GPU), cpu (one per core), or auto (gpu if
    available, otherwise cpu). [default: one per CUDA GPU, otherwise one]"""
    is_module: bool = option(False, "-m", "--module", group=PROCESSES)
    """Run SCRIPT as a module, like python -m."""
    max_restarts: int = option(0, group=PROCESSES, metavar="N")
    """Restart all processes up to N times after a failure. [default: 0]"""
    bind: str = option("none", group=PROCESSES, metavar=one_of(BINDINGS))
    """Bind each process and its loader workers to the CPUs near its GPU, like torchrun
    --numa-binding. [default: none]"""
    pass_local_rank: str = option("auto", group=PROCESSES, metavar=one_of(PASS_LOCAL_RANK))
    """Option that passes the local rank to the script. auto: the one of the two that the script
    defines, if any. [default: auto]"""
    spawns: str = option("auto", group=PROCESSES, metavar=one_of(SPAWNS))
    """Whether the script starts its own processes (mp.spawn); if so, it runs once, as with python.
    auto: determined from its source. [default: auto]"""

    nnodes: str | None = option(None, group=MACHINES, metavar="N|MIN:MAX")
    """Number of machines. Run the same command on each; only --node-rank differs. With MIN:MAX,
    machines may join and leave. [default: 1]"""
    node_rank: int | None = option(None, group=MACHINES, metavar="R")
    """Rank of this machine, starting at 0."""
    master_addr: str | None = option(None, group=MACHINES, metavar="HOST")
    """Host name or IP address of machine 0, reachable from the others."""
    master_port: int | None = option(None, group=MACHINES, metavar="PORT")
    """TCP port on machine 0 to which the others connect. [default: 29500; on one machine a free
    port, passed to scripts in MASTER_PORT]"""
    rdzv_endpoint: str | None = option(None, group=MACHINES, metavar="HOST:PORT")
    """Rendezvous address, the same on each machine: one of the machines and a free port on it.
    Replaces --node-rank and --master-addr."""
    rdzv_id: str | None = option(None, group=MACHINES, metavar="NAME")
    """Name that distinguishes runs with the same rendezvous endpoint. [default: none]"""
    rdzv_backend: str | None = option(None, group=MACHINES, metavar="[c10d|static]")
    """Accepted for torchrun compatibility: c10d for --rdzv-endpoint, static for --node-rank and
    --master-addr."""
    rdzv_secret_file: str | None = option(None, group=MACHINES, metavar="FILE")
    """File with the secret shared by the launchers of the run (or set LOCKSTEP_SECRET). [default: a
    new secret in a file next to the run directory, which all machines must be able to read]"""

    log_dir: Path | None = option(None, group=OUTPUT, metavar="DIR")
    """Write the output of rank R to DIR/rank-R.log instead of the terminal."""
    tee: bool = option(False, group=OUTPUT)
    """Prefix each line with its rank; with --log-dir, also show it on the terminal."""
    reports: Path | None = option(None, group=OUTPUT, metavar="FILE")
    """Append warnings (such as a stuck or slow rank) and failures to FILE as lines of JSON: kind,
    code, ranks, cause, places."""
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
    """Accepted for torchrun compatibility; no effect: processes on one machine need no rendezvous
    options."""
    role: str | None = option(None, group=TORCHRUN, metavar="NAME")
    """Accepted for torchrun compatibility; no effect: all processes have one role."""
    monitor_interval: float | None = option(None, group=TORCHRUN, metavar="SECONDS")
    """Accepted for torchrun compatibility; no effect: the exit of a process is noticed
    immediately."""
    start_method: str | None = option(None, group=TORCHRUN, metavar="[spawn|fork|forkserver]")
    """Accepted for torchrun compatibility; no effect: processes come from a fork
    server."""
    local_addr: str | None = option(None, group=TORCHRUN, metavar="ADDRESS")
    """Accepted for torchrun compatibility; no effect: the address is detected."""

    def __post_init__(self) -> None:
        for name, value, valid in (
            ("--pass-local-rank", self.pass_local_rank, PASS_LOCAL_RANK),
            ("--spawns", self.spawns, SPAWNS),
            # Only none or both: torchrun also accepts single streams and ranks, which have no
            # equivalent here.
            ("-r", self.redirects, (None, "0", "3")),
            ("-t", self.tee_streams, (None, "0", "3")),
        ):
            if value not in valid:
                raise ConfigError(
                    f"{name} {value}: choose one of {', '.join(choice for choice in valid if choice is not None)}.",
                    code="option-value-unknown",
                )
        if self.redirects == "3" and self.log_dir is None:
            raise ConfigError(
                "-r 3 requires --log-dir DIR, which writes both streams of rank R to DIR/rank-R.log. Add it, or remove -r.",
                code="redirects-without-log-dir",
            )
        check_max_restarts(self.max_restarts)

    @property
    def shows_ranks(self) -> bool:
        """Whether each line of output is prefixed with its rank."""
        return self.tee or self.tee_streams == "3"

    @property
    def local_rank_option(self) -> str:
        """The way in which workers get their local rank: one of ``PASS_LOCAL_RANK``."""
        return "none" if self.use_env else self.pass_local_rank
