"""Failed allocations of memory: how much was requested, how much is free, and what uses the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import psutil

from lockstep.tools.explain.errors.row import row
from lockstep.tools.explain.errors.scene import Scene, num_bytes, size

_SIZE = r"(\d[\d.]* (?:bytes|[KMGT]iB))"
_TOTAL = re.compile(rf"GPU (\d+) has a total capac\w+ of {_SIZE} of which {_SIZE} is free")
_OTHERS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_MINE = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
_RESERVED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")

Part = tuple[str, float]
"""What it is, and its bytes."""

_ACTIVATIONS, _OTHER_PROCESSES, _UNUSED = (
    "activations and other tensors",
    "other processes",
    "reserved by PyTorch and not in use",
)
_REMEDIES = {
    _ACTIVATIONS: (
        "Fewer samples at a time help most: a smaller batch for each process (more processes, or gradient accumulation), "
        "torch.utils.checkpoint, or 16 bits (autocast). Tensors that are kept from step to step (a list of losses without "
        ".item()) count here too"
    ),
    _OTHER_PROCESSES: (
        "Other processes hold most of it: end them (nvidia-smi lists them), or give each rank its own GPU: "
        "torch.cuda.set_device(local_rank) before anything is put on a GPU"
    ),
    _UNUSED: "Much of it is in pieces that do not fit: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
}
_OF_MODEL = (
    "The model itself takes most of it, whatever the batch size: divide it among the ranks (FSDP; strategy='fsdp'), use an "
    "optimizer with less state, or train in 16 bits"
)


def held(scene: Scene, device: str) -> list[Part]:
    """The memory of the models and optimizers that were found, on a device (``cpu`` or ``cuda:0``)."""
    parameters = [p for model in scene.models for p in (*model.parameters(), *model.buffers())]
    gradients = [p.grad for p in parameters if p.grad is not None]
    parts = [("parameters and buffers", _bytes(scene, parameters, device)), ("gradients", _bytes(scene, gradients, device))]
    for optimizer in scene.optimizers:
        state = _bytes(scene, _tensors(scene, optimizer.state.values()), device)
        parts.append((f"state of {type(optimizer).__name__}", state))
    return [part for part in parts if part[1]]


def _tensors(scene: Scene, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if scene.is_tensor(value):
            yield value
        elif isinstance(value, dict):
            yield from _tensors(scene, value.values())


def _bytes(scene: Scene, tensors: Iterable[Any], device: str) -> float:
    """The size of all storages; shared ones count once."""
    storages: dict[int, int] = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if str(local.device) == device and not scene.torch.nn.parameter.is_lazy(local):
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _shown(parts: Iterable[Part]) -> str:
    return "".join(f"\n  {num:>12}  {name}" for name, num in ((name, size(num)) for name, num in parts))


def _of_gpu(match: re.Match[str], scene: Scene) -> str:
    total = _TOTAL.search(scene.text)
    if total is None:
        return ""
    by_others, mine, allocated, reserved = (
        sum(num_bytes(process[pattern.groups]) for process in pattern.finditer(scene.text))
        for pattern in (_OTHERS, _MINE, _ALLOCATED, _RESERVED)
    )
    parts = held(scene, f"cuda:{total[1]}")
    # What PyTorch has allocated, but not for a model or an optimizer.
    parts.append((_ACTIVATIONS, max(0.0, allocated - sum(num for _, num in parts))))
    outside = mine - allocated - reserved
    parts += [(_UNUSED, reserved), ("CUDA itself and other libraries", max(0.0, outside) if mine else 0.0)]
    if not by_others:  # PyTorch cannot see them in a container
        by_others = max(0.0, num_bytes(total[2]) - num_bytes(total[3]) - (mine or allocated + reserved))
    pids = ", ".join(process[1] for process in _OTHERS.finditer(scene.text))
    parts.append((_OTHER_PROCESSES, by_others))
    by_size = sorted(parts, key=lambda part: -part[1])
    largest = by_size[0][0]
    shown = [(f"{name} ({pids})" if name == _OTHER_PROCESSES and pids else name, num) for name, num in by_size if num]
    where = f", in {scene.where}" if scene.where else ""
    return (
        f"GPU {total[1]} is full: {match['asked']} more were asked for{where}, "
        f"and {total[3]} of {total[2]} are free. What took them:{_shown(shown)}\n{_REMEDIES.get(largest, _OF_MODEL)}."
    )


def _of_cpu(match: re.Match[str], scene: Scene) -> str:
    asked, memory = float(match["asked"]), psutil.virtual_memory()
    total, free, resident = memory.total, memory.available, psutil.Process().memory_info().rss
    parts = held(scene, "cpu")
    parts.append(("everything else of this process", max(0.0, resident - sum(num for _, num in parts))))
    parts.append(("other processes, and the system", max(0.0, total - free - resident)))
    where = f", in {scene.where}" if scene.where else ""
    what = f"{size(asked)} more, asked for at once{where}"
    if asked < free:
        begin = f"This process may not have {what}, although {size(free)} of the machine's {size(total)} are free"
        remedy = "Raise the limit of its shell (ulimit -v), job or container; or use fewer samples at a time"
    else:
        begin = f"The machine has no memory for {what}: {size(free)} of {size(total)} are free"
        remedy = (
            "Use fewer samples at a time (a smaller batch for each process), and fewer loader workers or ranks on this machine"
            if asked < total
            else "That is more than the whole machine has: one of the sizes is likely wrong (a shape, a product, a broadcast)"
        )
    by_size = sorted((part for part in parts if part[1]), key=lambda part: -part[1])
    return f"{begin}. What took the rest:{_shown(by_size)}\n{remedy}."


ROWS = (
    row(
        "GPU memory",
        rf"CUDA out of memory\. Tried to allocate (?P<asked>{_SIZE[1:-1]})",
        _of_gpu,
        ("OutOfMemoryError", "RuntimeError"),
    ),
    row(
        "CPU memory",
        r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (?P<asked>\d+) bytes",
        _of_cpu,
    ),
)
