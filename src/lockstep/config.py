"""What a run is asked to do: one frozen value, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.errors import ConfigError, unknown_name

STRATEGIES = ("auto", "single", "ddp", "exact")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
BACKENDS = ("auto", "gloo", "nccl")
DEVICES = ("auto", "cpu", "cuda")
NAN_POLICIES = ("stop", "warn", "ignore")
PROGRESS_STYLES = ("auto", "bar", "plain", "off")
TRACE_LEVELS = ("off", "steps", "calls", "kernels")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of one run. Every field can be given to ``lockstep.join`` and to ``lockstep run``."""

    strategy: str = "auto"
    """How gradients meet: ``single`` (one process), ``ddp`` (PyTorch's all-reduce), ``exact`` (one fixed tree: equal to the
    bit at every world size), or ``auto``: ``exact`` where ``shards`` is given, else ``single`` for one process and ``ddp``."""
    precision: str = "32-true"
    """``32-true`` (float32 throughout), ``bf16-mixed`` (forward pass under bfloat16 autocast, float32 weights), or ``16-mixed``
    (float16 autocast, with the loss scaled: a step whose gradients overflow is skipped by all ranks together)."""
    shards: int | None = None
    """Number of shards V that every global batch is cut into, and so the largest world size that the run can have. None:
    the world size at the run's birth."""
    accumulate: int = 1
    """How many consecutive global batches make one step."""
    seed: int = 0
    """Root of every random stream of the run."""
    threads: int | None = None
    """Intra-op threads of each process; None: the cores of this machine divided by the shards (so that the number of
    processes and machines does not matter: threads can change the last bits)."""
    device: str = "auto"
    """``cpu``, ``cuda``, or ``auto`` (a card where there is one)."""
    backend: str = "auto"
    """``gloo``, ``nccl``, or ``auto``: NCCL where every process of a machine has a card of its own, else Gloo."""
    timeout_s: float = 600.0
    """Seconds that a collective may wait for the other ranks."""
    run_dir: str | None = None
    """Directory of the run; None: the next free ``runs/<script>-<n>``."""
    on_nan: str = "stop"
    """What a loss that is not a number does: ``stop`` (an error), ``warn`` (once a step), or ``ignore``."""
    log_every: int = 20
    """Steps between two exchanges of logged values among the ranks."""
    find_unused_parameters: bool = False
    """For ``ddp``: parameters that the first step used may be unused in later ones. (A model that leaves some out in its
    first step is found out without it.) Its gradients are then reduced after the backward pass, not while it runs."""
    progress: str = "auto"
    """``bar`` (on a terminal), ``plain`` (a line now and then), ``off``, or ``auto``."""
    workers: int | None = None
    """Loader workers of each process, in place of what the script's DataLoaders say; None: as they say. The answer does not
    depend on it."""
    trace: str = "off"
    """What is written to ``trace/`` in the run's directory, for ``lockstep verify``: ``off`` (nothing), ``steps`` (digests of
    every step: samples, losses, gradients, weights; slow), ``calls`` (also what the script's code does that could make runs
    differ; very slow), ``kernels`` (as ``steps``, with deterministic kernels where there are some, and what PyTorch says of
    the others)."""
    trace_until: int | None = None
    """With ``trace``: end the script in order, with exit status 0, after this step. None: let it come to its own end."""

    def __post_init__(self) -> None:
        for kind, name, valid in (
            ("strategy", self.strategy, STRATEGIES),
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
        ):
            value = getattr(self, field)
            if value is None and field in ("shards", "threads", "workers", "trace_until"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{field}={value!r}: it must be a whole number, {least} or more")
        if self.trace_until is not None and self.trace == "off":
            raise ConfigError(f"trace_until={self.trace_until} without a trace to end: give trace= as well")
        if self.seed >= 2**63:
            raise ConfigError(f"seed={self.seed}: it must be below 2**63")
        is_number = isinstance(self.timeout_s, (int, float)) and not isinstance(self.timeout_s, bool)
        if not is_number or not math.isfinite(self.timeout_s) or self.timeout_s <= 0:
            raise ConfigError(f"timeout_s={self.timeout_s!r}: it must be a positive number of seconds")

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
            if command[name] != script[name]:
                raise ConfigError(
                    f"{name} is {script[name]!r} in the script's join() and {command[name]!r} on the command line: "
                    "neither may win silently. Leave one of them out."
                )
        return cls(**{**script, **command})
