"""The settings of a run: one frozen value, validated on creation."""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockstep._base import extensions
from lockstep._base.errors import ConfigError, unknown_name
from lockstep._base.nondeterministic_operations import OPERATIONS, of_error
from lockstep._base.option import CHECKPOINTS, PROCESSES, TRAINING, Option, check_options, one_of, option, options_of
from lockstep._base.trackers import check_track

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def check_interval(value: Any) -> int | str:
    """Returns ``checkpoint_every`` in canonical form, so that settings can be compared and passed
    on as text: a number of steps, a number of seconds followed by ``s``, or ``off``.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(value, datetime.timedelta):
        # Every decimal number of up to 15 digits survives the way through a float, so that two
        # spellings of one interval are equal as text.
        value = f"{value.total_seconds():.15g}s"
    # Without bool, which is an int in Python: checkpoint_every=True is no number of steps.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if value == "off":
        return "off"
    if isinstance(value, str):
        if value.isdecimal() and int(value) >= 1:
            return int(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?(?:e[-+]?\d+)?)([smhd])", value)
        seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
        # 1e999 has the form of a number, and is infinite as a float.
        if 0 < seconds < math.inf:
            return f"{seconds:.15g}s"
    raise ConfigError(
        f"checkpoint_every={value!r}: expected a number of steps (1 or more), a time (a timedelta, or text such as 30s, 10m "
        "or 2h), or 'off'.",
        code="checkpoint-every-invalid",
    )


@dataclass(frozen=True, kw_only=True)
class StrategyTraits:
    """A strategy for synchronizing gradients: its module, and its requirements."""

    module: str = ""
    """The module whose ``make(config, num_shards, transport, devices)`` creates its ``Strategy``,
    imported when needed."""
    one_process: bool = False
    devices: str = "several"
    """The devices that a process may use: ``one``; ``several``, on which the script places its
    models; or ``all`` GPUs."""
    needs: str = ""
    """The requirement of the machine: ``gpus``, ``horovod``."""
    promises_bits: bool = False
    """Whether results are bit-identical at every world size."""
    repeats: bool = False
    """Whether a run that is repeated or resumed on the same number of processes is
    bit-identical."""
    audits: bool = False
    """Whether a process can recompute a shard separately, without communication."""
    even: bool = False
    """Whether each process must have the same number of shards."""
    shards_parameters: bool = False
    """Whether a process stores a slice of each parameter: all processes gather whole parameters."""
    balances: bool = False
    """Whether shards may move between processes during a run without changing results."""


STRATEGIES = {
    "auto": StrategyTraits(promises_bits=True, repeats=True),
    "single": StrategyTraits(module="lockstep._sync.single", one_process=True, repeats=True, audits=True),
    "ddp": StrategyTraits(module="lockstep._sync.ddp"),
    "exact": StrategyTraits(module="lockstep._sync.exact", promises_bits=True, repeats=True, audits=True, balances=True),
    "fsdp": StrategyTraits(
        module="lockstep._sync.fsdp", promises_bits=True, repeats=True, devices="one", even=True, shards_parameters=True
    ),
    "horovod": StrategyTraits(module="lockstep._sync.horovod", needs="horovod"),
    "dp": StrategyTraits(module="lockstep._sync.dp", one_process=True, devices="all", needs="gpus"),
}
PRECISIONS = ("32-true", "16-mixed", "16-master", "16-true", "bf16-mixed", "bf16-true")
BACKENDS = ("auto", "gloo", "nccl", "mpi")
DEVICES = ("auto", "cpu", "cuda", "mps", "npu", "xpu")
NAN_POLICIES = ("stop", "warn", "ignore")
PROGRESS_STYLES = ("auto", "bar", "plain", "off")
RUNS = Path("runs")
"""The folder, in the working directory, of the run directories that are not set by ``run_dir``."""
ALLOWABLE = ("data", "device", "epochs", "numerics", "optimizer", "shards", "threads")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run. Every field is an argument of ``lockstep.join`` and an option of
    ``lockstep run``. (Options of tools are passed in the same places; ``options_of_tools`` lists
    them.)"""

    strategy: str = option("auto", group=TRAINING, choices=STRATEGIES)
    """How gradients are combined. [default: auto (exact: bit-identical on any number of processes)]

    ``single`` (one process), ``dp`` (one process with several GPUs: ``nn.DataParallel``), ``ddp``
    (PyTorch's all-reduce), ``fsdp`` (PyTorch's ``fully_shard``: each process stores a slice of the
    parameters and of the optimizer state), ``horovod`` (Horovod's all-reduce, if installed),
    ``exact`` (one fixed tree: bit-identical at every world size, and to ``fsdp``), or ``auto``:
    ``exact``, or ``single`` where V is 1 (see ``shards``). A run of another strategy than these two
    is resumed by ``auto`` without the promise: ``single`` on one process, ``ddp`` on several."""
    precision: str = option("32-true", group=TRAINING, choices=PRECISIONS)
    """Data types of weights and computation; see docs/precision.md. [default: 32-true]

    ``32-true`` (float32 throughout); ``16-mixed``, ``bf16-mixed`` (float32 weights, forward passes
    under PyTorch's autocast); ``16-master`` (passes in float16 with copies of float32 weights,
    BatchNorm in float32); ``16-true``, ``bf16-true`` (everything in 16 bits, including weights and
    optimizer state). With ``16-mixed`` and ``16-master`` the loss is scaled, and a step whose
    gradients overflow is skipped by all ranks together."""
    shards: int | None = option(None, group=TRAINING, least=1, most=2**20, metavar="V")
    """Number of shards that each global batch is split into; at least the number of processes.
    Results depend on V, so prefer to set it in the script: join(shards=8). [default: number of
    processes]

    V is the largest world size of the run. With the default, another number of processes at the
    first launch gives a different, equally good result."""
    accumulate: int = option(1, group=TRAINING, least=1, metavar="K")
    """Global batches per optimizer step. [default: 1]"""
    balance: str = option("auto", group=TRAINING, choices=("auto", "on", "off"))
    """Move shards from slow processes to faster ones; results are unchanged. Only with strategy
    exact and at least two shards per process. [default: auto (on the CPU only)]

    On other devices, ``on`` may need several more copies of the gradients on each of them:
    docs/balance.md has the figures."""
    seed: int | None = option(None, group=TRAINING, least=0, most=2**63 - 1, metavar="N")
    """Seed for all random numbers. [default: the script's torch.manual_seed(), otherwise 0]

    The script's seed is that of a ``torch.manual_seed`` before ``join`` (below 2**32). A seed
    passed to ``torch.manual_seed`` between ``join`` and ``prepare`` is mixed in."""
    threads: int | None = option(None, group=PROCESSES, least=1, most=2**14, metavar="N")
    """CPU threads per process. [default: OMP_NUM_THREADS, otherwise cores / shards]

    For PyTorch, NumPy's BLAS and OpenMP. The default is independent of the number of processes and
    machines, since threads can change the last bits."""
    device: str = option("auto", group=PROCESSES, choices=DEVICES)
    """Device to train on. [default: auto (a GPU if available)]

    ``auto`` also chooses other accelerators: ``mps``, ``npu`` and ``xpu`` may work."""
    devices_per_process: int | None = option(None, group=PROCESSES, least=1, metavar="N")
    """Devices per process. [default: one; with strategy dp, all GPUs]

    ``team.devices`` lists them. The script places the parts of its models on them, except with
    ``dp``. On the CPU they are all the same."""
    batch_dim: int = option(0, group=TRAINING, least=0, metavar="N")
    """Strategy dp only: dimension along which inputs and results are split over the GPUs. [default:
    0]"""
    backend: str = option("auto", group=PROCESSES, choices=BACKENDS)
    """Communication library. [default: auto (nccl if each process has its own GPU, otherwise gloo)]

    ``mpi`` requires a PyTorch built with it."""
    init_method: str | None = option(None, group=PROCESSES, metavar="URL")
    """Rendezvous of the processes: tcp://HOST:PORT, file:///PATH or env://. [default: a private
    file]

    ``tcp://HOST:PORT`` (rank 0 listens there), ``file:///PATH`` (a fresh path on a file system that
    all of them share), ``env://`` (MASTER_ADDR and MASTER_PORT), or None: chosen by the launcher.
    """
    timeout_s: float = option(600.0, "--timeout", group=PROCESSES, metavar="SECONDS")
    """Seconds that a process waits for other processes in a collective. [default: 600]"""
    run_dir: str | None = option(None, group=TRAINING, metavar="DIR")
    """Run directory. [default: that of the newest run of this command, if it was interrupted;
    otherwise the next free runs/SCRIPT-N]"""
    on_nan: str = option("stop", group=TRAINING, choices=NAN_POLICIES)
    """What to do when a loss is NaN: stop with an error, warn, or ignore it. [default: stop]

    ``warn`` warns once per step."""
    log_every: int = option(20, group=TRAINING, least=1, metavar="STEPS")
    """Steps between comparisons of logged values among ranks.  [default: 20]"""
    find_unused_parameters: bool = option(False, group=TRAINING)
    """Strategy ddp only: allow parameters used in the first step to be unused later. (Other
    strategies always allow it.)

    Gradients are then reduced after the backward pass rather than during it. (Not needed if some
    parameters are unused in the first step, which is detected.)"""
    progress: str = option("auto", group=TRAINING, choices=PROGRESS_STYLES)
    """Progress display. [default: auto (bar on a terminal, otherwise plain lines)]"""
    track: str | Sequence[str] | None = option(None, group=TRAINING, metavar="NAME[,NAME]")
    """Experiment trackers: tensorboard, wandb (wandb:PROJECT sets the project), trackio, or another
    module with the same interface; off disables them. [default: tensorboard if installed]

    The event log contains all values in any case."""
    nondeterministic: Sequence[str] = option((), group=TRAINING, metavar="OP[,OP]")
    """On a GPU: allow these operations although PyTorch has no deterministic kernel for them.
    Results are then not bit-identical. May be repeated.

    docs/deterministic-kernels.md lists their names. A run keeps the setting of its first launch."""
    workers: int | None = option(None, group=TRAINING, least=0, metavar="N")
    """Loader workers per process, for every DataLoader, including evaluation. [default: the
    script's num_workers]

    Results do not depend on it."""
    checkpoint_every: int | str | datetime.timedelta = option("10m", group=CHECKPOINTS, metavar="STEPS|TIME")
    """Steps or time (30s, 10m, 2h) between checkpoints. One is always saved at the end; off
    disables all. [default: 10m]

    ``join`` also accepts a ``timedelta``."""
    keep: int = option(2, group=CHECKPOINTS, least=1, metavar="N")
    """Number of newest checkpoints to keep. [default: 2]

    The best weights are kept as well (see ``Team.best``)."""
    fresh: bool = option(False, group=CHECKPOINTS)
    """Start a new run. [default: resume the newest interrupted run of the same command, if any]

    A run that is already in ``run_dir`` is renamed, never deleted."""
    allow: Sequence[str] = option((), group=CHECKPOINTS, metavar=one_of(ALLOWABLE))
    """Resume although this setting differs from the interrupted run; results may then differ. On a
    GPU, numerics also turns off deterministic kernels, in a new run too. May be repeated.

    ``data`` (length of the dataset, batch size, sampler; what a stream yields when it is read
    again), ``device``, ``epochs`` (fewer of them), ``numerics`` (PyTorch's numeric switches),
    ``optimizer`` (its options: the current ones apply), ``shards``, ``threads``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoint_every", check_interval(self.checkpoint_every))
        object.__setattr__(self, "allow", _check_allowed(self.allow))
        object.__setattr__(self, "track", check_track(self.track))
        object.__setattr__(self, "nondeterministic", _check_operations(self.nondeterministic))
        check_options(self)
        _check_init_method(self.init_method)
        if not isinstance(self.fresh, bool):
            raise ConfigError(f"fresh={self.fresh!r}: must be True or False.", code="fresh-invalid")
        if (self.devices_per_process or 1) > 1 and STRATEGIES[self.strategy].devices == "one":
            suitable = ", ".join(name for name, strategy in STRATEGIES.items() if strategy.devices != "one")
            raise ConfigError(
                f"devices_per_process={self.devices_per_process} is not supported by strategy={self.strategy!r} (one device "
                f"per process). Remove it, or use one of: {suitable}.",
                code="devices-per-process-unsupported",
            )
        is_number = isinstance(self.timeout_s, (int, float)) and not isinstance(self.timeout_s, bool)
        if not is_number or not math.isfinite(self.timeout_s) or self.timeout_s <= 0:
            raise ConfigError(f"timeout_s={self.timeout_s!r}: must be a positive number of seconds.", code="timeout-invalid")

    @property
    def interval(self) -> int | str:
        """``checkpoint_every`` in canonical form: a number of steps, seconds followed by ``s``, or
        ``off``."""
        return check_interval(self.checkpoint_every)

    @classmethod
    def merge(cls, command: Mapping[str, Any], script: Mapping[str, Any]) -> RunConfig:
        """Combines settings like ``merge_settings``, and returns the run's settings without the
        options of tools."""
        return merge_settings(command, script).run


@functools.cache
def options_of_tools() -> dict[str, type]:
    """Returns the dataclasses of the options that tools and other packages add to every run, by the
    name of their instrument.

    Raises:
        ConfigError: one cannot be imported, or defines an option that exists.
    """
    kinds: dict[str, type] = {}
    for name in extensions.names("options"):
        kind = extensions.load_for_runs("options", name)
        for other in (RunConfig, *kinds.values()):
            for twice in options_of(kind).keys() & options_of(other).keys():
                raise ConfigError(
                    f"{name!r} defines option {twice!r}, which {other.__name__} already defines. Uninstall the package that "
                    "adds it.",
                    code="option-defined-twice",
                )
        kinds[name] = kind
    return kinds


def setting_kinds() -> tuple[type, ...]:
    """The dataclasses whose fields are settings of a run."""
    return RunConfig, *options_of_tools().values()


def all_settings() -> dict[str, Option]:
    """Returns the options of all settings by field, including options of tools."""
    return {name: option for kind in setting_kinds() for name, option in options_of(kind).items()}


def without_tools(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are not options of tools."""
    of_tools = {name for kind in options_of_tools().values() for name in options_of(kind)}
    return {name: value for name, value in settings.items() if name not in of_tools}


COMMAND_LINE, IN_SCRIPT = "on the command line", "in the script"


@dataclass(frozen=True)
class AskedSettings:
    """What a launch asks for, by its command and its script together."""

    run: RunConfig
    """The settings of the run."""
    tools: Mapping[str, Any]
    """The options of each tool, by the name of its instrument."""
    givers: Mapping[str, str]
    """Where each setting was set, ``COMMAND_LINE`` or ``IN_SCRIPT``, by name. Settings with their
    default are absent, and so are None and ``auto``, which ask for it."""

    def with_seed(self, seed: int) -> AskedSettings:
        """Returns these settings with the seed that the script has set for PyTorch."""
        return replace(self, run=replace(self.run, seed=seed), givers={**self.givers, "seed": IN_SCRIPT})


def merge_settings(command: Mapping[str, Any], script: Mapping[str, Any]) -> AskedSettings:
    """Combines the settings of the command line with the arguments of the script's ``join(...)``.

    Raises:
        ConfigError: a setting is unknown or invalid, or is set in both places with different
            values.
    """
    names = all_settings()
    for name in (*command, *script):
        if name not in names:
            raise unknown_name("setting", name, sorted(names))
    for name in command.keys() & script.keys():
        # In canonical form, in which 10m and 600s are equal.
        if _plain(name, command[name]) != _plain(name, script[name]):
            raise ConfigError(
                f"{name} is {script[name]!r} in the script's join() and {command[name]!r} on the command line "
                "(or in its --config file). Set it in one place.",
                code="setting-conflict",
            )
    # In either order: what is set in both places is equal by now.
    given = {**script, **command}

    def of(kind: Any) -> Any:
        return kind(**{name: given[name] for name in options_of(kind) if name in given})

    givers = {name: COMMAND_LINE if name in command else IN_SCRIPT for name, value in given.items()}
    are_set = {name: giver for name, giver in givers.items() if given[name] not in (None, "auto")}
    return AskedSettings(of(RunConfig), {name: of(kind) for name, kind in options_of_tools().items()}, are_set)


def _check_init_method(value: Any) -> None:
    if value is None or value == "env://":
        return
    try:
        url = urlsplit(value)
        is_tcp = url.scheme == "tcp" and bool(url.hostname and url.port) and not url.path.strip("/")
        is_file = url.scheme == "file" and not url.netloc and url.path.rstrip("/") not in ("", ".")
    except (ValueError, AttributeError):  # an invalid port, or not a string
        is_tcp = is_file = False
    if not (is_tcp or is_file) or url.query or url.fragment:
        raise ConfigError(
            f"init_method={value!r}: expected env://, tcp://HOST:PORT (of rank 0's machine), or file:///PATH (an "
            "absolute path, after two slashes).",
            code="init-method-invalid",
        )


def _check_allowed(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise ConfigError(f"allow={value!r}: expected a list of names among {', '.join(ALLOWABLE)}.", code="allow-invalid")
    names = [value] if isinstance(value, str) else list(value)
    for name in names:
        if name not in ALLOWABLE:
            raise unknown_name("name in allow", name, ALLOWABLE)
    # In one order, since the ranks compare their settings as text.
    return tuple(sorted(set(names)))


def _check_operations(value: Any) -> tuple[str, ...]:
    valid = sorted(operation.name for operation in OPERATIONS)
    if not isinstance(value, Iterable):
        raise ConfigError(
            f"nondeterministic={value!r}: expected a list of names among {', '.join(valid)}.",
            code="nondeterministic-invalid",
        )
    texts = [value] if isinstance(value, str) else list(value)
    names = set()
    for name in (part.strip() for text in texts for part in (text.split(",") if isinstance(text, str) else [text])):
        # By the table's name, or by the name of the kernel in PyTorch's error.
        operation = of_error(name) if isinstance(name, str) and name not in valid else None
        if operation is None and name not in valid:
            raise unknown_name("operation in nondeterministic", name, valid)
        names.add(name if operation is None else operation.name)
    return tuple(sorted(names))


def _plain(name: str, value: Any) -> Any:
    if name == "nondeterministic":
        return _check_operations(value)
    if name == "checkpoint_every":
        return check_interval(value)
    if name == "track":
        return check_track(value)
    return _check_allowed(value) if name == "allow" else value
