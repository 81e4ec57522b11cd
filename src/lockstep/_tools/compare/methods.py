"""The names of methods: ``strategy[@launcher][+precision]``, and the rows of a comparison that they
stand for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from lockstep._base import config
from lockstep._base.errors import ConfigError, unknown_name

STRATEGIES = tuple(name for name in config.STRATEGIES if name != "auto")
"""``auto`` is left out: a row must say what it ran."""
LAUNCHERS = ("lockstep", "torchrun", "python", "mpirun", "horovodrun")
_EXAMPLE = "ddp@torchrun+bf16-mixed"
_DEFAULTS = {
    **{name: config.STRATEGIES[name].needs for name in STRATEGIES},
    "single@python": "",
    "ddp@torchrun": "",
    "ddp@mpirun": "mpirun",
    "horovod@horovodrun": "horovod",
    **{f"ddp+{precision}": "gpus" for precision in config.PRECISIONS if precision != "32-true"},
}
"""Each strategy, each launcher, each precision; and the component it needs. (Processors emulate
most 16-bit formats.)"""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to run a script."""

    strategy: str
    launcher: str = "lockstep"
    """``lockstep`` (``lockstep run``), ``torchrun``, ``mpirun``, ``horovodrun``, or ``python`` (the
    plain interpreter: one process)."""
    precision: str = "32-true"

    @property
    def name(self) -> str:
        """The name as a user would write it, without defaults."""
        launcher = "" if self.launcher == "lockstep" else f"@{self.launcher}"
        precision = "" if self.precision == "32-true" else f"+{self.precision}"
        return f"{self.strategy}{launcher}{precision}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of a comparison: a method with a number of processes."""

    number: int
    """Place in the comparison, from 1."""
    method: Method
    num_processes: int

    @property
    def label(self) -> str:
        """The name of the row in the output."""
        return f"{self.method.name} ×{self.num_processes}"

    @property
    def slug(self) -> str:
        """A name for the row's directory."""
        name = self.method.name.replace("@", "-").replace("+", "-")
        return f"{self.number}-{name}-x{self.num_processes}"


def parse_method(text: str) -> Method:
    """``"ddp@torchrun+bf16-mixed"`` as a Method.

    Raises:
        ConfigError: a part is not known, or the launcher cannot start what the strategy needs.
    """
    front, plus, precision = text.strip().partition("+")
    strategy, at, launcher = front.partition("@")
    if "@" in precision:
        raise ConfigError(
            f"method {text.strip()!r}: put the launcher before the precision, as in {_EXAMPLE!r}.", code="method-order"
        )
    if strategy not in STRATEGIES:
        raise unknown_name("method", strategy, STRATEGIES)
    if at and launcher not in LAUNCHERS:
        raise unknown_name(f"launcher in method {text.strip()!r}:", launcher, LAUNCHERS)
    if plus and precision not in config.PRECISIONS:
        raise unknown_name(f"precision in method {text.strip()!r}:", precision, config.PRECISIONS)
    if launcher == "python" and not config.STRATEGIES[strategy].one_process:
        raise ConfigError(
            f"method {text.strip()!r}: plain python starts one process, and {strategy} needs several. "
            f"Use {strategy!r} (started by lockstep run) or '{strategy}@torchrun'.",
            code="method-needs-launcher",
        )
    return Method(strategy=strategy, launcher=launcher if at else "lockstep", precision=precision if plus else "32-true")


def parse_methods(text: str) -> tuple[Method, ...]:
    """Methods separated by commas, in the order given. One named twice runs twice: that shows the
    noise.

    Raises:
        ConfigError: one is not known, or there is none.
    """
    methods = tuple(parse_method(part) for part in text.split(",") if part.strip())
    if not methods:
        raise ConfigError(f"no method in {text!r}. Pass at least one, for example single,ddp.", code="no-method")
    return methods


def default_methods(components: Collection[str]) -> tuple[str, ...]:
    """The names of the methods that run on a machine with these components, of gpus, horovod,
    mpirun."""
    return tuple(name for name, needed in _DEFAULTS.items() if not needed or needed in components)


def default_nprocs(*, num_gpus: int, num_cores: int) -> tuple[int, ...]:
    """2, 4, 8, ... up to the number of GPUs; without several GPUs, up to that of cores, and to 4.

    2 is always included, because one row is not a comparison; a row that cannot run shows the
    reason."""
    largest = num_gpus if num_gpus > 1 else min(num_cores, 4)
    return tuple(2**power for power in range(1, max(2, largest).bit_length()))


def expand(methods: Sequence[Method], nprocs: Iterable[int]) -> tuple[Row, ...]:
    """One row for each method and number of processes; ``single`` and ``dp`` have one process
    whatever is asked for."""
    numbers = tuple(nprocs)
    pairs = [
        (method, num_processes)
        for method in methods
        for num_processes in ((1,) if config.STRATEGIES[method.strategy].one_process else numbers)
    ]
    return tuple(
        Row(number=index, method=method, num_processes=num_processes)
        for index, (method, num_processes) in enumerate(pairs, start=1)
    )
