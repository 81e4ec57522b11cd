"""What a run is asked to do: one frozen value, checked when it is made."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lockstep.errors import ConfigError, unknown_name
from lockstep.option import CHECKPOINTS, PROCESSES, TRAINING, one_of, option


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way for gradients to meet: where it is, and what it asks of the way a run is started."""

    sync: str = ""
    """The module whose ``make(config, num_shards, transport, devices)`` makes it: a ``Sync``. (Imported where it is wanted.)"""
    one_process: bool = False
    devices: str = "several"
    """That a process may drive: ``one``; ``several``, on which the script places its models; or ``all`` GPUs, by itself."""
    needs: str = ""
    """What a machine may lack: ``gpus``, ``horovod``."""


STRATEGIES = {
    "auto": Strategy(),
    "single": Strategy(sync="lockstep.sync.single", one_process=True),
    "ddp": Strategy(sync="lockstep.sync.ddp"),
    "exact": Strategy(sync="lockstep.sync.exact"),
    "fsdp": Strategy(sync="lockstep.sync.fsdp", devices="one"),
    "horovod": Strategy(sync="lockstep.sync.horovod", needs="horovod"),
    "dp": Strategy(sync="lockstep.sync.dp", one_process=True, devices="all", needs="gpus"),
}
PRECISIONS = ("32-true", "16-mixed", "16-master", "16-true", "bf16-mixed", "bf16-true")
BACKENDS = ("auto", "gloo", "nccl", "mpi")
DEVICES = ("auto", "cpu", "cuda")
NAN_POLICIES = ("stop", "warn", "ignore")
PROGRESS_STYLES = ("auto", "bar", "plain", "off")
TRACE_LEVELS = ("off", "steps", "gradient", "calls", "kernels")
ALLOWABLE = ("data", "device", "numerics", "optimizer", "precision", "shards", "threads")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run. Every field can be given to ``lockstep.join`` and to ``lockstep run``."""

    strategy: str = option(
        "auto",
        group=TRAINING,
        metavar=one_of(STRATEGIES),
        help="How gradients are synchronized.  [default: auto, which is exact with --shards, else ddp, or single for one "
        "process]",
    )
    """How gradients are synchronized: ``single`` (one process), ``dp`` (one process with several GPUs: ``nn.DataParallel``),
    ``ddp`` (PyTorch's all-reduce), ``fsdp`` (PyTorch's ``fully_shard``: each process keeps a part of the parameters and of the
    optimizer's state), ``horovod`` (Horovod's all-reduce, where it is installed), ``exact`` (one fixed tree: equal to the bit
    at every world size), or ``auto``: ``exact`` where ``shards`` is given, else ``single`` for one process and ``ddp``."""
    precision: str = option(
        "32-true", group=TRAINING, metavar=one_of(PRECISIONS), help="Formats of weights and passes: see docs/precision.md."
    )
    """``32-true`` (float32 throughout); ``16-mixed``, ``bf16-mixed`` (float32 weights, forward passes under PyTorch's
    autocast); ``16-master`` (passes in float16 with copies of float32 weights, BatchNorm in float32); ``16-true``,
    ``bf16-true`` (everything in 16 bits, weights and the optimizer's state too). With ``16-mixed`` and ``16-master`` the loss
    is scaled, and a step whose gradients overflow is skipped by all ranks together. See docs/precision.md."""
    shards: int | None = option(
        None,
        group=TRAINING,
        metavar="V",
        help="Parts that every global batch is cut into: runs with the same V give the same answer.  [default: the number of "
        "processes]",
    )
    """Number of shards V that every global batch is cut into, and so the largest world size that the run can have. None:
    the world size at the run's birth."""
    accumulate: int = option(
        1, group=TRAINING, metavar="K", help="Consecutive global batches that make one step.  [default: 1]"
    )
    """How many consecutive global batches make one step."""
    seed: int | None = option(
        None,
        group=TRAINING,
        metavar="N",
        help="Root of all random streams.  [default: the script's torch.manual_seed(), else 0]",
    )
    """Root of every random stream of the run. None: the script's own (``torch.manual_seed``, below 2**32, before ``join``),
    else 0. What the script gives to ``torch.manual_seed`` between ``join`` and ``prepare`` is mixed in."""
    threads: int | None = option(
        None,
        group=PROCESSES,
        metavar="N",
        help="Threads of each process.  [default: OMP_NUM_THREADS, else the cores, divided]",
    )
    """Threads of each process, for PyTorch, NumPy's BLAS and OpenMP. None: OMP_NUM_THREADS if the user has set it, else the
    cores of this machine divided by the shards (so that the number of processes and machines does not matter: threads can
    change the last bits)."""
    device: str = option(
        "auto", group=PROCESSES, metavar=one_of(DEVICES), help="Where to train.  [default: a GPU where there is one]"
    )
    """``cpu``, ``cuda``, or ``auto`` (a GPU where there is one)."""
    devices_per_process: int | None = option(
        None,
        group=PROCESSES,
        metavar="N",
        help="Devices that each process drives.  [default: one; with strategy dp, all GPUs]",
    )
    """Devices of each process, ``team.devices``. None: one; with ``dp``, all GPUs of the machine. With more than one (and
    another strategy than ``dp``) the script places the parts of its models on them. On the CPU they are all the same one."""
    batch_dim: int = option(
        0,
        group=TRAINING,
        metavar="N",
        help="With strategy dp: the dimension of inputs and results that is cut into a part for each GPU.  [default: 0]",
    )
    """For ``dp``: the dimension of a model's inputs and results that is cut into a part for each GPU."""
    backend: str = option(
        "auto",
        group=PROCESSES,
        metavar=one_of(BACKENDS),
        help="Library for communication between processes.  [default: nccl where each process has its own GPU, else gloo]",
    )
    """``gloo``, ``nccl``, ``auto`` (NCCL where every process of a machine has a GPU of its own, else Gloo), or ``mpi``, which
    needs a PyTorch that was built with it."""
    init_method: str | None = option(
        None,
        group=PROCESSES,
        metavar="URL",
        help="Where processes meet: tcp://HOST:PORT, file:///PATH, env://.  [default: a private file]",
    )
    """Where the processes meet: ``tcp://HOST:PORT`` (rank 0 listens there), ``file:///PATH`` (on a file system that all of
    them share; whatever earlier runs have left there does no harm), ``env://`` (what MASTER_ADDR and MASTER_PORT say), or
    None: as the launcher has arranged it."""
    timeout_s: float = option(
        600.0,
        "--timeout",
        group=PROCESSES,
        metavar="SECONDS",
        help="How long a process may wait for the others in a collective.  [default: 600]",
    )
    """Seconds that a collective may wait for the other ranks."""
    run_dir: str | None = option(
        None, group=TRAINING, metavar="DIR", help="Directory of the run.  [default: the next free runs/SCRIPT-N]"
    )
    """Directory of the run; None: the next free ``runs/<script>-<n>``."""
    on_nan: str = option(
        "stop",
        group=TRAINING,
        metavar=one_of(NAN_POLICIES),
        help="What to do when a loss is NaN: stop with an error, warn, or ignore it.  [default: stop]",
    )
    """What a loss that is not a number does: ``stop`` (an error), ``warn`` (once a step), or ``ignore``."""
    log_every: int = option(
        20, group=TRAINING, metavar="STEPS", help="Steps between two exchanges of logged values.  [default: 20]"
    )
    """Steps between two exchanges of logged values among the ranks."""
    find_unused_parameters: bool = option(
        False, group=TRAINING, help="With strategy ddp: parameters that the first step used may be unused later."
    )
    """For ``ddp``: parameters that the first step used may be unused in later ones. (A model that leaves some out in its
    first step is found out without it.) Its gradients are then reduced after the backward pass, not while it runs."""
    progress: str = option("auto", group=TRAINING, metavar=one_of(PROGRESS_STYLES), help="How to show progress.")
    """``bar`` (on a terminal), ``plain`` (a line now and then), ``off``, or ``auto``."""
    workers: int | None = option(
        None, group=TRAINING, metavar="N", help="Loader workers of each process.  [default: as the script says]"
    )
    """Loader workers of each process, in place of what the script's DataLoaders say; None: as they say. The answer does not
    depend on it."""
    trace: str = option(
        "off", group=TRAINING, metavar=one_of(TRACE_LEVELS), help="Write digests of every step; slow. See lockstep verify."
    )
    """What is written to ``trace/`` in the run's directory, for ``lockstep verify``: ``off`` (nothing), ``steps`` (digests of
    every step: samples, losses, gradients, weights; slow), ``gradient`` (also the gradient of the first phase as numbers,
    without dropout and with BatchNorm in evaluation mode), ``calls`` (also what the script's code does that could make runs
    differ; very slow), ``kernels`` (as ``steps``, with deterministic kernels where there are some, and what PyTorch says of
    the others)."""
    trace_until: int | None = option(
        None, group=TRAINING, metavar="STEP", help="End the script after this step, with a trace."
    )
    """With ``trace``: end the script in order, with exit status 0, after this step. None: let it come to its own end."""

    checkpoint_every: int | str | datetime.timedelta = option(
        "10m",
        group=CHECKPOINTS,
        metavar="STEPS|TIME",
        help="Save the run's state every so many steps, or every 30s, 10m, 2h; or off.  [default: 10m, and at the end]",
    )
    """When the run's state is saved, besides at its end: every so many steps (a whole number), every so often (a
    ``timedelta``, or a text such as ``30s``, ``10m``, ``2h``), or ``off`` (never, and not at the end either)."""
    keep: int = option(2, group=CHECKPOINTS, metavar="N", help="How many checkpoints stay.  [default: 2]")
    """How many checkpoints stay: the newest ones. (The best one, see ``Team.best``, stays besides.)"""
    fresh: bool = option(
        False, group=CHECKPOINTS, help="Start a new run.  [default: resume the newest interrupted run of the same command]"
    )
    """Start a new run, also where an interrupted one could be resumed. A run that is already in ``run_dir`` is set
    aside under another name, never deleted."""
    allow: Sequence[str] = option(
        (),
        group=CHECKPOINTS,
        metavar=one_of(ALLOWABLE),
        help="What may differ from the interrupted run, although the answer may then too. May be given again.",
    )
    """What may differ from the run that is resumed, although the answer may be another then: any of ``data`` (length of
    the data set, batch size, sampler), ``device``, ``numerics`` (PyTorch's own switches), ``optimizer`` (its options: those
    of now apply), ``precision``, ``shards``, ``threads``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoint_every", _check_interval(self.checkpoint_every))
        object.__setattr__(self, "allow", _check_allowed(self.allow))
        for kind, name, valid in (
            ("strategy", self.strategy, tuple(STRATEGIES)),  # not by its hash: a list is no name either
            ("precision", self.precision, PRECISIONS),
            ("backend", self.backend, BACKENDS),
            ("device", self.device, DEVICES),
            ("on_nan", self.on_nan, NAN_POLICIES),
            ("progress", self.progress, PROGRESS_STYLES),
            ("trace", self.trace, TRACE_LEVELS),
        ):
            if name not in valid:
                raise unknown_name(kind, name, valid)
        for field, least in (
            ("shards", 1),
            ("accumulate", 1),
            ("seed", 0),
            ("threads", 1),
            ("log_every", 1),
            ("workers", 0),
            ("trace_until", 1),
            ("keep", 1),
            ("devices_per_process", 1),
            ("batch_dim", 0),
        ):
            value = getattr(self, field)
            if value is None and field in ("shards", "seed", "threads", "workers", "trace_until", "devices_per_process"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{field}={value!r}: it must be a whole number, {least} or more")
        _check_init_method(self.init_method)
        if not isinstance(self.fresh, bool):
            raise ConfigError(f"fresh={self.fresh!r}: it must be True or False")
        if (self.devices_per_process or 1) > 1 and STRATEGIES[self.strategy].devices == "one":
            others = ", ".join(name for name, strategy in STRATEGIES.items() if strategy.devices != "one")
            raise ConfigError(
                f"devices_per_process={self.devices_per_process} with strategy={self.strategy!r}, which has one a "
                f"process: leave it out, or choose one of {others}"
            )
        if self.trace_until is not None and self.trace == "off":
            raise ConfigError(f"trace_until={self.trace_until} without a trace to end: give trace= as well")
        if (self.seed or 0) >= 2**63:
            raise ConfigError(f"seed={self.seed}: it must be below 2**63")
        is_number = isinstance(self.timeout_s, (int, float)) and not isinstance(self.timeout_s, bool)
        if not is_number or not math.isfinite(self.timeout_s) or self.timeout_s <= 0:
            raise ConfigError(f"timeout_s={self.timeout_s!r}: it must be a positive number of seconds")

    @property
    def interval(self) -> int | str:
        """``checkpoint_every`` in one form: steps, seconds with ``s`` behind them, or ``off``."""
        return _check_interval(self.checkpoint_every)

    @classmethod
    def merge(cls, command: Mapping[str, Any], script: Mapping[str, Any]) -> RunConfig:
        """Settings of the command line and of the script's ``join(...)``, as one.

        Raises:
            ConfigError: one names a setting that does not exist, or both name one and differ. (Neither wins
                silently: what was asked for must be what runs.)
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for name in (*command, *script):
            if name not in known:
                raise unknown_name("setting", name, sorted(known))
        for name in command.keys() & script.keys():
            if _plain(name, command[name]) != _plain(name, script[name]):
                raise ConfigError(
                    f"{name} is {script[name]!r} in the script's join() and {command[name]!r} on the command line: "
                    "neither may win silently. Leave one of them out."
                )
        return cls(**{**script, **command})


def _check_init_method(value: Any) -> None:
    if value is None or value == "env://":
        return
    try:
        url = urlsplit(value)
        is_tcp = url.scheme == "tcp" and bool(url.hostname and url.port) and not url.path.strip("/")
        is_file = url.scheme == "file" and not url.netloc and url.path.rstrip("/") not in ("", ".")
    except (ValueError, AttributeError):  # a port that is none, or no text at all
        is_tcp = is_file = False
    if not (is_tcp or is_file) or url.query or url.fragment:
        raise ConfigError(
            f"init_method={value!r}: give env://, tcp://HOST:PORT (of rank 0's machine), or file:///PATH (from the root, with "
            "three slashes)"
        )


def _check_interval(value: Any) -> int | str:
    """``checkpoint_every`` in one form: a number of steps, a number of seconds with ``s`` behind it, or ``off``.

    (One form, so that settings can be compared, and travel as text.)
    """
    if isinstance(value, datetime.timedelta):
        value = f"{value.total_seconds():.15g}s"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if value == "off":
        return "off"
    if isinstance(value, str):
        if value.isdecimal() and int(value) >= 1:
            return int(value)
        found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)([smhd])", value)
        seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
        if 0 < seconds < math.inf:
            return f"{seconds:.15g}s"
    raise ConfigError(
        f"checkpoint_every={value!r}: give a number of steps (1 or more), a time (a timedelta, or a text such as 30s, 10m, "
        "2h), or 'off'"
    )


def _check_allowed(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise ConfigError(f"allow={value!r}: give a list of names, any of {', '.join(ALLOWABLE)}")
    names = [value] if isinstance(value, str) else list(value)
    for name in names:
        if name not in ALLOWABLE:
            raise unknown_name("name in allow", name, ALLOWABLE)
    return tuple(sorted(set(names)))


def _plain(name: str, value: Any) -> Any:
    if name == "checkpoint_every":
        return _check_interval(value)
    return _check_allowed(value) if name == "allow" else value
