"""The nodes of a cluster, as reported by ``sinfo``, and whether a job can ever run on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lockstep.base.errors import ConfigError
from lockstep.tools.slurm import units
from lockstep.tools.slurm.request import Request
from lockstep.world.job.hostlist import expand_hosts

FORMAT = "%N|%P|%c|%m|%G|%l|%t"
"""For ``sinfo --Node --noheader --format``: a line per node and partition."""
_USABLE = ("idle", "mix", "alloc", "comp", "resv", "plnd", "idle~", "idle#", "idle%")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node in one partition."""

    name: str
    partition: str
    is_default: bool
    """Whether it is the default partition."""
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int]
    """Number of GPUs by kind; the kind may be empty."""
    limit_min: float
    """The time limit of the partition, in minutes."""
    state: str

    @property
    def is_usable(self) -> bool:
        """Whether it runs jobs, or would if it were free."""
        return self.state.rstrip("*$@^!+-") in _USABLE and not self.state.endswith("*")  # *: does not respond

    def num_gpus(self, kind: str | None) -> int:
        """Number of GPUs of a kind, or of all kinds."""
        return sum(self.gpus.values()) if kind is None else self.gpus.get(kind, 0)


def read_nodes(text: str) -> list[Node]:
    """Parse the output of ``sinfo`` in ``FORMAT``.

    Raises:
        ConfigError: a line has another form.
    """
    nodes = []
    for line in filter(None, text.splitlines()):
        try:
            name, partition, cpus, memory, gres, limit, state = line.split("|")
            nodes.append(
                Node(
                    name=name,
                    partition=partition.rstrip("*"),
                    is_default=partition.endswith("*"),
                    cpus=int(cpus.rstrip("+")),
                    memory_mb=int(memory.rstrip("+")),
                    gpus=_gpus(gres),
                    limit_min=units.minutes(limit),
                    state=state,
                )
            )
        except ValueError as error:
            raise ConfigError(
                f"sinfo answered {line!r}, which cannot be read ({error}): submit by hand, with sbatch"
            ) from None
    return nodes


def _gpus(gres: str) -> dict[str, int]:
    """The number of GPUs by kind in a text such as ``gpu:a100:4(S:0-1),gpu:2,license:1``."""
    gpus: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        kind, _, number = item.rpartition(":")
        if kind.partition(":")[0] == "gpu" and number.isdecimal():
            name = kind.partition(":")[2]
            gpus[name] = gpus.get(name, 0) + int(number)
    return gpus


def check(request: Request, nodes: Sequence[Node]) -> list[str]:
    """Check that the job can run on this cluster. Returns notices for the user.

    Raises:
        ConfigError: it can never run; the message gives the reason, and what is available.
    """
    members = _members(request, nodes)
    where = f"partition {members[0].partition}"
    _check_time(request, members, where)
    named = _named(request, members, where)
    fitting = list(named)
    for need in _needs(request):
        fewer = [node for node in fitting if need.amount(node) >= need.least]
        if len(fewer) < request.nodes:
            among = f" among {_shortened(node.name for node in named)}" if request.nodelist or request.exclude else ""
            raise ConfigError(
                f"--nodes {request.nodes}, each with {need.text}: {where} has {len(fewer) or 'no'} such node"
                f"{'s' if len(fewer) > 1 else ''}{among}; the most that one has is "
                f"{max(map(need.amount, fitting)):g}{need.unit}. {need.remedy}, or choose another partition ({_summary(nodes)})"
            )
        fitting = fewer
    usable = [node for node in fitting if node.is_usable]
    if len(usable) < request.nodes:
        states = ", ".join(sorted({f"{node.name} {node.state}" for node in fitting if not node.is_usable})[:10])
        return [
            f"{len(usable)} of the {request.nodes} nodes that the job needs can be used now ({states}): it waits for the others"
        ]
    return []


class _Need(NamedTuple):
    """A requirement on a node."""

    text: str
    least: float
    amount: Callable[[Node], float]
    """How much a node has."""
    unit: str
    remedy: str


def _needs(request: Request) -> Iterator[_Need]:
    if request.gpus_per_node:
        kind, number = units.gpus(request.gpus_per_node)
        text = f"{number} {kind + ' ' if kind else ''}GPU{'s' if number > 1 else ''}"
        yield _Need(text, number, lambda node: node.num_gpus(kind), "", "Ask for fewer with --gpus-per-node")
    cpus = request.tasks * (request.cpus_per_task or 1)
    product = f" ({request.tasks} processes x {request.cpus_per_task or 1})" if request.tasks > 1 else ""
    text = f"{cpus} CPU{'s' if cpus > 1 else ''}{product}"
    yield _Need(text, cpus, lambda node: node.cpus, "", "Ask for fewer with --cpus-per-task")
    if request.mem:
        size = units.megabytes(request.mem)
        yield _Need(f"{request.mem} of memory", size, lambda node: node.memory_mb, " MB", "Ask for less with --mem")


def _members(request: Request, nodes: Sequence[Node]) -> list[Node]:
    names = sorted({node.partition for node in nodes})
    if not nodes:
        raise ConfigError("sinfo lists no nodes: ask your cluster's administrators")
    if request.partition is None:
        default = [node for node in nodes if node.is_default]
        if not default:
            raise ConfigError(f"this cluster has no default partition: give --partition, one of {', '.join(names)}")
        return default
    wanted = request.partition.split(",")
    for name in wanted:
        if name not in names:
            raise ConfigError(f"--partition {name}: this cluster has none of that name. Choose one of {', '.join(names)}")
    return [node for node in nodes if node.partition in wanted]


def _check_time(request: Request, members: Sequence[Node], where: str) -> None:
    limit = max(node.limit_min for node in members)
    if request.time is not None and units.minutes(request.time) > limit:
        raise ConfigError(
            f"--time {request.time}: jobs in {where} may run for {_span(limit)} at most. Give a shorter time: with --requeue "
            "the run resumes in as many jobs as it takes"
        )


def _named(request: Request, members: Sequence[Node], where: str) -> list[Node]:
    """The nodes that the job may use, without duplicates."""
    by_name = {node.name: node for node in members}
    listed = expand_hosts(request.nodelist) if request.nodelist else []
    excluded = expand_hosts(request.exclude) if request.exclude else []
    for option, names in (("nodelist", listed), ("exclude", excluded)):
        unknown = [name for name in names if name not in by_name]
        if unknown:
            raise ConfigError(f"--{option}: {where} has no {', '.join(unknown)}. It has {_shortened(by_name)}")
    both = [name for name in listed if name in excluded]
    if both:
        raise ConfigError(f"--nodelist and --exclude both name {', '.join(both)}: take them out of one")
    nodes = [node for node in by_name.values() if node.name not in excluded]
    if len(listed) == request.nodes:
        nodes = [by_name[name] for name in listed]
    if len(nodes) < request.nodes:
        raise ConfigError(
            f"--nodes {request.nodes}: {where} has {len(nodes)} ({_shortened(node.name for node in nodes)}). Ask for fewer"
        )
    return nodes


def _summary(nodes: Iterable[Node]) -> str:
    """The maximum in each partition: ``gpu: 4 nodes with up to 64 CPUs, 512000 MB, 8 GPUs``."""
    by_partition: dict[str, list[Node]] = {}
    for node in nodes:
        by_partition.setdefault(node.partition, []).append(node)
    return "; ".join(
        f"{name}: {len(members)} nodes with up to {max(node.cpus for node in members)} CPUs, "
        f"{max(node.memory_mb for node in members)} MB, {max(node.num_gpus(None) for node in members)} GPUs"
        for name, members in sorted(by_partition.items())
    )


def _span(minutes: float) -> str:
    days, minutes_of_day = divmod(int(minutes), 24 * 60)
    return f"{days}-{minutes_of_day // 60:02d}:{minutes_of_day % 60:02d}:{round(minutes % 1 * 60):02d}"


def _shortened(names: Iterable[str], most: int = 12) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} others" if len(listed) > most else "")
