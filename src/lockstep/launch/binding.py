"""The CPUs on which each process may run. Planned here, from a description of the machine; applied in the workers.

PyTorch's ``torch.numa`` (``torchrun --numa-binding``) cannot take its place: it binds only processes that have a GPU, asks CUDA
where that is, needs the program numactl, and its public names are options for torchelastic, with nothing that applies them.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.base.config import RunConfig
from lockstep.base.errors import ConfigError, unknown_name
from lockstep.launch import gpus
from lockstep.launch.topology import Node, format_cpus, read_gpu_nodes, read_nodes
from lockstep.world.machine.cores import num_cores

BINDINGS = ("none", "auto", "cores", "numa")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """The CPUs of each process of a launch. (Loader workers inherit them.)"""

    kind: str
    """``cores`` or ``numa``."""
    cpus: tuple[tuple[int, ...], ...]
    """By rank."""
    nodes: tuple[tuple[int, ...], ...]
    """By rank: the NUMA nodes of the CPUs."""
    num_cores: int
    """Cores that the processes may use together, whether bound or not: numbers of threads must not depend on the binding."""

    def __str__(self) -> str:
        """The line for the user."""
        lines = [
            f"lockstep: rank {rank} is bound to CPU{'s' if len(cpus) > 1 else ''} {format_cpus(cpus)} "
            f"(NUMA node{'s' if len(nodes) > 1 else ''} {format_cpus(nodes)})"
            for rank, (cpus, nodes) in enumerate(zip(self.cpus, self.nodes, strict=True))
        ]
        return "\n".join(lines)


def announce(kind: str, binding: Binding | None, *, is_one_of_several: bool = False) -> None:
    """Report the binding on standard error, if one was requested.

    ``is_one_of_several``: whether there are several machines, so that only local ranks are known yet.
    """
    if binding is None and kind == "auto":
        print("lockstep: processes are not bound: there are fewer cores than processes, and one NUMA node", file=sys.stderr)
    elif binding is not None:
        told = str(binding)
        print(told.replace(": rank ", ": local rank ") if is_one_of_several else told, file=sys.stderr, flush=True)


def bind_here(kind: str, nproc: int, config: RunConfig) -> Binding | None:
    """Plan a binding of this machine's processes to the CPUs that this process may use; None: no binding.

    Args:
        kind: ``cores`` (each process has cores of its own, on one NUMA node if possible), ``numa`` (each has all cores of a
            node), ``auto`` (``cores`` if there are enough, else ``numa`` if there are several nodes, else none), ``none``.
        config: says which GPUs a process uses; it is bound close to them.

    Raises:
        ConfigError: the kind is unknown, or there are too few cores.
    """
    if kind not in BINDINGS:
        raise unknown_name("binding", kind, BINDINGS)
    if kind == "none":
        return None
    each = config.devices_per_process or 1
    known: tuple[int | None, ...] = ()
    if config.device != "cpu" and gpus.num_gpus_here() > 0:
        known = read_gpu_nodes(os.environ)
    near = tuple(known[rank * each % len(known)] for rank in range(nproc)) if known else (None,) * nproc
    return plan_binding(kind, read_nodes(os.sched_getaffinity(0)), near, num_cores())


def plan_binding(kind: str, nodes: Sequence[Node], near: Sequence[int | None], num_cores: int) -> Binding | None:
    """Plan a binding of as many processes as ``near`` has entries. Pure.

    Args:
        kind: as for ``bind_here``, except ``none``.
        nodes: the NUMA nodes of the machine, with the CPUs that may be used.
        near: for each process, the number of the node that it should be close to, or None.
        num_cores: cores that they may use together.

    Raises:
        ConfigError: ``cores``, and a node has fewer CPUs than processes that should be there.
    """
    shares = _deal_nodes(nodes, near)
    if kind == "auto":
        try:
            return plan_binding("cores", nodes, near, num_cores)
        except ConfigError:
            return plan_binding("numa", nodes, near, num_cores) if len(nodes) > 1 else None
    if kind == "numa":
        cpus = [tuple(sorted(cpu for node in share for cpu in node.cpus)) for share in shares]
    else:
        cpus = _deal_cores(shares)
    return Binding(
        kind=kind,
        cpus=tuple(cpus),
        nodes=tuple(tuple(node.number for node in share) for share in shares),
        num_cores=num_cores,
    )


def _deal_nodes(nodes: Sequence[Node], near: Sequence[int | None]) -> list[tuple[Node, ...]]:
    """The nodes of each process: one, or several if there are fewer processes than nodes."""
    numbers = {node.number: index for index, node in enumerate(nodes)}
    indices = [numbers.get(number) if number is not None else None for number in near]
    num_processes = len(indices)
    if num_processes < len(nodes) and all(index is None for index in indices):
        cuts = [rank * len(nodes) // num_processes for rank in range(num_processes + 1)]
        return [tuple(nodes[first:last]) for first, last in itertools.pairwise(cuts)]
    # Processes without a GPU go to the node with the most cores per process, and neighbours in rank stay together.
    load = [indices.count(index) for index in range(len(nodes))]
    free = [rank for rank, index in enumerate(indices) if index is None]
    chosen = []
    for _ in free:
        index = max(range(len(nodes)), key=lambda index: (len(nodes[index].cores) / (load[index] + 1), -index))
        load[index] += 1
        chosen.append(index)
    for rank, index in zip(free, sorted(chosen), strict=True):
        indices[rank] = index
    return [(nodes[index],) for index in indices if index is not None]


def _deal_cores(shares: Sequence[tuple[Node, ...]]) -> list[tuple[int, ...]]:
    """Separate cores for each process or, if there are too few, separate CPUs."""
    cpus: list[tuple[int, ...]] = [()] * len(shares)
    for share in dict.fromkeys(shares):
        ranks = [rank for rank, assigned in enumerate(shares) if assigned == share]
        units = [core for node in share for core in node.cores]
        if len(units) < len(ranks):
            units = [(cpu,) for core in units for cpu in core]
        if len(units) < len(ranks):
            where = f"NUMA node {share[0].number} has {len(units)} CPU{'s' if len(units) != 1 else ''} that may be used"
            raise ConfigError(
                f"binding to cores: {where}, for {len(ranks)} processes: each needs one of its own. Start fewer processes, or "
                "use --bind numa (a whole node each), or no binding"
            )
        for index, rank in enumerate(ranks):
            first, last = (number * len(units) // len(ranks) for number in (index, index + 1))
            cpus[rank] = tuple(sorted(cpu for unit in units[first:last] for cpu in unit))
    return cpus
