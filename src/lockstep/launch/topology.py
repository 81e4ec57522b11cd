"""The cores of this machine by NUMA node, and the nodes of its GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.launch.gpus import valid_entries


@dataclass(frozen=True)
class Node:
    """A NUMA node."""

    number: int
    cores: tuple[tuple[int, ...], ...]
    """For each core the numbers of its CPUs: several with hyper-threading."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs of all its cores, in order."""
        return tuple(sorted(cpu for core in self.cores for cpu in core))


def read_nodes(allowed: Collection[int], root: Path = Path("/sys/devices/system")) -> tuple[Node, ...]:
    """The nodes with any of the allowed CPUs, and with those only. (A single node if the kernel reports none.)"""
    members = {int(path.name[4:]): parse_cpus((path / "cpulist").read_text()) for path in root.glob("node/node[0-9]*")}
    known = {cpu for cpus in members.values() for cpu in cpus}
    unknown = set(allowed) - known
    if unknown:
        members[min(members, default=0)] = tuple(sorted({*members.get(min(members, default=0), ()), *unknown}))
    nodes = []
    for number, cpus in sorted(members.items()):
        cores = {_siblings(cpu, root) for cpu in cpus if cpu in allowed}
        usable = [tuple(cpu for cpu in core if cpu in allowed) for core in cores]
        if usable:
            nodes.append(Node(number, tuple(sorted(usable))))
    return tuple(nodes)


def _siblings(cpu: int, root: Path) -> tuple[int, ...]:
    try:
        return parse_cpus((root / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
    except OSError:  # a container that hides it
        return (cpu,)


def parse_cpus(text: str) -> tuple[int, ...]:
    """Parse a set of CPUs in the kernel's notation: ``0-3,8``."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def format_cpus(cpus: Collection[int]) -> str:
    """Format a set of CPUs in the kernel's notation."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def read_gpu_nodes(
    environ: Mapping[str, str],
    driver: Path = Path("/proc/driver/nvidia/gpus"),
    pci: Path = Path("/sys/bus/pci/devices"),
    dev: Path = Path("/dev"),
) -> tuple[int | None, ...]:
    """The node that each GPU is close to, in CUDA's order of the visible GPUs; None: unknown.

    Empty if the visible GPUs cannot be determined. (CUDA puts faster GPUs first, and equal ones in the order of the bus,
    which is the order here: on a machine with different GPUs, CUDA_DEVICE_ORDER=PCI_BUS_ID makes both the same.)
    """
    gpus: list[tuple[str, int | None]] = []  # UUID, node
    for path in sorted(driver.glob("*")):
        try:
            told = dict(re.findall(r"^([^:\n]+):\s*(.*?)\s*$", (path / "information").read_text(), re.MULTILINE))
        except OSError:
            continue
        if (dev / f"nvidia{told.get('Device Minor', '')}").exists():  # a container has some of the machine's GPUs
            gpus.append((told.get("GPU UUID", ""), _node_of(pci / path.name.lower())))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(node for _, node in gpus)
    chosen: list[int | None] = []
    for name in valid_entries(len(gpus), visible):
        if name.startswith("MIG-"):  # parts of a GPU, which are not in the driver's files
            break
        chosen += [gpus[int(name)][1]] if name.isdecimal() else [node for uuid, node in gpus if uuid.startswith(name)]
    return tuple(chosen)


def _node_of(device: Path) -> int | None:
    try:
        number = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None
