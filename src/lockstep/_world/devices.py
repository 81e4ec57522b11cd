"""The devices that PyTorch computes on: the CPU, and the one kind of accelerator that it was built
or extended for.

Nothing else names a kind of device where a call of ``torch.accelerator``, ``torch.Stream``,
``torch.Event`` or of this file serves all of them. Proven: the CPU. Written for: CUDA. Others (xpu,
npu) may work.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter

_NOTHING = contextlib.nullcontext()


def accelerator() -> str:
    """The kind of accelerator that this process can use, such as ``cuda``; ``cpu`` if there is
    none."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if found is None else found.type


def name_of(kind: str) -> str:
    """What people call devices of this kind."""
    return "CUDA GPU" if kind == "cuda" else f"{kind} device"


@functools.cache
def _module() -> Any:
    # This asks what PyTorch was built for, and not the driver.
    kind = torch.accelerator.current_accelerator()
    return None if kind is None else torch.get_device_module(kind)


def in_use() -> Any:
    """PyTorch's module for the accelerator, such as ``torch.cuda``, if this process uses it
    already; None: it does not.

    What only follows a script asks here, so that it is not the first to open a context, which takes
    memory of the device and must not be inherited by a fork.
    """
    module = _module()
    if module is None or not getattr(module, "is_initialized", module.is_available)():
        return None
    return module


def on_this_device(run: Callable[[], None]) -> Callable[[], None]:
    """The function for a new thread, which begins on the device of this one, instead of on the
    first, where every process of the machine would open a context as soon as its thread touches a
    tensor, some hundred MB of memory each."""
    if in_use() is None:
        return run
    index = torch.accelerator.current_device_index()

    def on_device() -> None:
        torch.accelerator.set_device_index(index)
        run()

    return on_device


def product_of(device: torch.device) -> str:
    """The name of the product, ``NVIDIA H100`` say; empty if the CPU, or not known."""
    ask = None if device.type == "cpu" else getattr(torch.get_device_module(device), "get_device_name", None)
    return "" if ask is None else str(ask(device))


def num_multiprocessors(device: torch.device) -> int | None:
    """On how many multiprocessors of a device kernels run; None if not known."""
    ask = getattr(torch.get_device_module(device), "get_device_properties", None)
    return None if ask is None else getattr(ask(device), "multi_processor_count", None)


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The memory of a device."""

    total_bytes: int
    used_bytes: int
    """The bytes that are in use, by any process: tensors, contexts, and the buffers of NCCL."""
    reserved_bytes: int | None
    """The bytes that the allocator of PyTorch in this process has reserved; None if not known."""


def memory_of(device: torch.device) -> DeviceMemory | None:
    """The memory of a device now; None if it cannot be read. Does not wait for the device."""
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    ask, reserved = getattr(module, "mem_get_info", None), getattr(module, "memory_reserved", None)
    if ask is None:
        return None
    try:
        free, total = ask(device)
    except RuntimeError:  # some devices of XPU do not know it
        return None
    return DeviceMemory(
        total_bytes=int(total),
        used_bytes=int(total) - int(free),
        reserved_bytes=None if reserved is None else int(reserved(device)),
    )


def uuid_of(device: torch.device) -> str:
    """What distinguishes a device from all others, whatever number a process sees it under; empty
    if not known."""
    ask = getattr(torch.get_device_module(device), "get_device_properties", None)
    return "" if ask is None else str(getattr(ask(device), "uuid", ""))


def card_of(device: torch.device) -> str:
    """The place of a device's card in its machine, by PCI; empty if not known. Parts of one GPU
    (MIG) have one, although each has a UUID."""
    ask = getattr(torch.get_device_module(device), "get_device_properties", None)
    found = None if ask is None else ask(device)
    place = [getattr(found, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return "" if None in place else ":".join(map(str, place))


def is_capturing(device: torch.device) -> bool:
    """Whether the current stream records a graph, rather than running its operations."""
    ask = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    return ask is not None and bool(ask())


def has_streams(device: torch.device) -> bool:
    """Whether the work of a device may be in several streams. On others it is in one, or there is
    none."""
    return device.type not in ("cpu", "meta", "mps")


def new_stream(device: torch.device) -> torch.Stream | None:
    """A stream in addition to the script's, where a device has several."""
    return torch.Stream(device) if has_streams(device) else None


def in_current_stream(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context, for any thread, in which this thread's current stream of a device is the current
    one. One thread at a time may enter it."""
    return torch.accelerator.current_stream(device) if has_streams(device) else _NOTHING


def move(model: nn.Module, device: torch.device) -> dict[Parameter, Parameter]:
    """Moves a model to a device, and returns the parameters that were replaced, with their
    replacements.

    ``Module.to`` moves parameters in place where their kind of tensor allows it, as on CUDA.
    Elsewhere (devices on PyTorch's PrivateUse1) it makes new ones, which no optimizer knows, a new
    one for each name of a shared parameter: shared again here."""
    before = dict(model.named_parameters(remove_duplicate=False))
    model.to(device)
    replaced: dict[Parameter, Parameter] = {}
    for name, old in before.items():
        new = model.get_parameter(name)
        if new is not old and replaced.setdefault(old, new) is not new:
            owner, _, own_name = name.rpartition(".")
            setattr(model.get_submodule(owner), own_name, replaced[old])
    return replaced
