"""State as JSON and named tensors: nothing is pickled, so reading a checkpoint runs no code.

A plain value is stored unchanged, and so is a dict whose keys are all strings that do not begin
with ``$``. Any other value is an object with one tag and optional further fields::

    {"$tuple": [0.9, 0.999]}
    {"$dict": [[0, "the value of the key 0"], ...]}
    {"$deque": [1, 2], "maxlen": 3}
    {"$tensor": "optimizer-1.state.0.exp_avg", "device": "cuda", "strides": [1, 4]}

A tensor's ``device`` is the kind of device that it was on. In a process with several devices,
``place`` is the number of the device in the process, unless that is 0. PyTorch's own numbers differ
from process to process, and a resumed run may have other devices.

Only the types in ``kinds.py`` can be written and read, by exact type, since a subclass may have
more state than its base.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from lockstep._base.errors import ConfigError
from lockstep._state.checkpoint.kinds import IN_NUMPY, KINDS, TAGS, RefusedError, is_plain
from lockstep._world.comm.dtensors import is_dtensor

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_TENSORS = {Tensor: "$tensor", Parameter: "$parameter", np.ndarray: "$array"}
_IN_FILES = {  # dtypes that safetensors supports; complex numbers are stored as pairs
    *IN_NUMPY,
    *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
}


def take_apart(tree: Any, name: str, devices: Sequence[torch.device] = ()) -> tuple[Json, dict[str, Tensor]]:
    """Splits a tree into a JSON value and named tensors.

    The tensors are detached but not copied (arrays are copied), so they change with the tree. They
    may be on a GPU, with any strides. ``put_together`` requires them to be contiguous and on the
    CPU.

    Args:
        tree: tensors, arrays, plain values, and containers of them.
        name: the name in messages, and the prefix of the tensors' names.
        devices: the devices of this process.

    Raises:
        ConfigError: the tree contains a value of another type.
    """
    taker = _Taker(devices)
    return taker.take(tree, name), taker.tensors


def put_together(value: Json, tensors: Mapping[str, Tensor], devices: Sequence[torch.device] = ()) -> Any:
    """Rebuilds a tree from the results of ``take_apart``. Its tensors are in newly allocated
    memory: in the mapped memory of a file they would not be aligned, and vectorized kernels can
    round differently at other alignments.

    Args:
        tensors: the tensors by name, on the CPU.
        devices: the devices of this process. A tensor of an accelerator goes to the one with the
            same number. None: all tensors stay on the CPU.
    """
    return _Putter(tensors, devices).put(value)


class _Taker:
    """The splitting of a tree. ``name`` is a location in the tree, for messages and the names of
    tensors."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._devices = devices
        self._shared: dict[int, dict[str, Any]] = {}

    def take(self, value: Any, name: str) -> Any:
        if is_plain(value):
            return value
        kind = type(value)
        # A tensor that occurs twice is stored once and restored as one: tied weights stay tied.
        if kind in _TENSORS or is_dtensor(value):
            if id(value) not in self._shared:
                self._shared[id(value)] = self._tensor(value, name)
            return self._shared[id(value)]
        if kind is not list and kind not in TAGS:
            _refuse(name, f"of type {kind.__module__}.{kind.__qualname__}".replace(" builtins.", " "))
        return self._content(value, name) if kind in (list, dict) else self._tagged(value, name)

    def _tagged(self, value: Any, name: str) -> dict[str, Any]:
        tag = TAGS[type(value)]
        try:
            parts, options = KINDS[tag].apart(value), KINDS[tag].options(value)
        except RefusedError as error:
            _refuse(name, str(error))
        content = self._content(parts, name)
        if tag in ("$set", "$frozenset"):
            content.sort(key=json.dumps)  # the order of strings in a set differs between processes
        place = self._place(value) if tag == "$device" else {}
        return {tag: content, **place, **{key: self.take(item, f"{name}.{key}") for key, item in options.items()}}

    def _content(self, value: Any, name: str) -> Any:
        if type(value) is list:
            return [self.take(item, f"{name}.{i}") for i, item in enumerate(value)]
        return self._dict(value, name) if type(value) is dict else self.take(value, name)

    def _dict(self, value: dict[Any, Any], name: str) -> dict[str, Any]:
        pairs = []
        for i, (key, item) in enumerate(value.items()):
            if is_plain(key):
                taken, step = key, _in_name(str(key))
            else:
                taken, step = self.take(key, f"{name}.keys.{i}"), str(i)
            pairs.append([taken, self.take(item, f"{name}.{step}")])
        if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {"$dict": pairs}

    def _tensor(self, value: Any, name: str) -> dict[str, Any]:
        tag = _TENSORS.get(type(value), "$tensor")
        if tag == "$array":
            if value.dtype.name not in IN_NUMPY:
                _refuse(name, f"a numpy array of {value.dtype}")
            value = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="K"))
        if name in self.tensors:  # two keys with the same text: 1 and "1"
            name = next(free for i in count(2) if (free := f"{name}~{i}") not in self.tensors)
        dtype = str(value.dtype).removeprefix("torch.")
        if value.layout is not torch.strided or value.is_nested or value.is_meta or dtype not in _IN_FILES:
            layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
            _refuse(name, f"a {layout} tensor of {dtype} on the device {value.device}")
        node = {tag: name, "device": value.device.type, **self._place(value.device)}
        if is_dtensor(value):  # cut or gathered before it is written, so its strides do not matter
            self.tensors[name] = value.detach()
            return node
        # The strides of clone(): without gaps, in the same order of dimensions. Kernels choose
        # their order of summation by strides (channels_last), so they are restored.
        usual = _usual_strides(value.shape)
        if value.stride() != usual and (strides := torch.empty_like(value, device="meta").stride()) != usual:
            node["strides"] = list(strides)
        if value.requires_grad and value.is_leaf:
            node["requires_grad"] = True
        if value.is_complex():
            node["complex"] = True
        tensor = value.detach().resolve_conj().resolve_neg()
        self.tensors[name] = torch.view_as_real(tensor) if value.is_complex() else tensor
        return node

    def _place(self, device: torch.device) -> dict[str, int]:
        number = self._devices.index(device) if device in self._devices else 0
        return {"place": number} if number and device.type != "cpu" else {}


@functools.lru_cache(maxsize=4096)  # a model has many tensors of few shapes
def _usual_strides(shape: torch.Size) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    return torch.empty(shape, device="meta").stride()


@functools.lru_cache(maxsize=4096)  # an optimizer has the same keys for each parameter
def _in_name(key: str) -> str:
    """Returns a key as a part of a tensor's name in the file, so without spaces and slashes."""
    return re.sub(r"[^\w.-]+", "_", key)


def _refuse(name: str, description: str) -> NoReturn:
    raise ConfigError(
        f"cannot save {name} ({description}): checkpoints contain only tensors, numpy arrays, plain values and containers "
        "of them. Give its object a state_dict() and load_state_dict() of such values, or remove it.",
        code="value-not-savable",
    )


class _Putter:
    """The rebuilding of a tree."""

    def __init__(self, tensors: Mapping[str, Tensor], devices: Sequence[torch.device]) -> None:
        self._tensors = tensors
        self._devices = devices
        self._shared: dict[tuple[str, str], Any] = {}

    def put(self, value: Any) -> Any:
        if type(value) is list:
            return [self.put(item) for item in value]
        if type(value) is not dict:
            return value
        parts = {key: self.put(item) for key, item in value.items()}
        tag = next((key for key in value if key.startswith("$")), None)
        if tag is None:
            return parts
        content = parts.pop(tag)
        if tag == "$device":
            return self._here(torch.device(content), **parts)
        if tag in KINDS:
            return KINDS[tag].together(content, **parts)
        if (tag, content) not in self._shared:
            self._shared[tag, content] = self._tensor(tag, content, **parts)
        return self._shared[tag, content]

    def _tensor(
        self,
        tag: str,
        name: str,
        *,
        device: str,
        place: int = 0,
        strides: Sequence[int] | None = None,
        requires_grad: bool = False,
        complex: bool = False,
    ) -> Any:
        tensor = self._tensors[name].detach().clone()
        if complex:
            tensor = torch.view_as_complex(tensor)
        if strides is not None:
            tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu").copy_(tensor)
        if tag == "$array":
            return tensor.numpy()
        # A DTensor is already on the device of this rank's rows.
        if self._devices and not is_dtensor(tensor):
            tensor = tensor.to(self._here(torch.device(device), place))
        return Parameter(tensor, requires_grad) if tag == "$parameter" else tensor.requires_grad_(requires_grad)

    def _here(self, device: torch.device, place: int = 0) -> torch.device:
        """Returns the device of this process for a device of the process that saved the
        checkpoint. With fewer devices, the last one takes the rest."""
        if device.type == "cpu" or not self._devices:
            return device
        return self._devices[min(place, len(self._devices) - 1)]
