"""Finds the operations of PyTorch that return different bits for equal inputs: two runs are
recorded and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Not in torch's documentation, and used by its own profilers of operations in the same way.
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")
"""Operations whose results mean nothing yet."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Call:
    """Of an operation: its name, and sums of the bits of the tensors that went in and came out."""

    name: str
    given: tuple[int, ...]
    made: tuple[int, ...]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation in its block, including operations of backward passes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[str, int, int]] = []
        self._sums: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = self._add((args, kwargs))  # before: some write into what they are given
        result = func(*args, **(kwargs or {}))
        name = str(func)
        self._calls.append((name, given, 0 if name.startswith(UNWRITTEN) else self._add(result)))
        return result

    def _add(self, values: Any) -> int:
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and summable(leaf)]
        self._sums += [bit_sum(tensor) for tensor in tensors]
        return len(tensors)

    def calls(self) -> list[Call]:
        """What was recorded. Waits for the device, once."""
        by_device: dict[torch.device, list[int]] = {}
        for place, value in enumerate(self._sums):
            by_device.setdefault(value.device, []).append(place)
        sums = [0] * len(self._sums)
        for places in by_device.values():
            for place, value in zip(places, torch.stack([self._sums[place] for place in places]).tolist(), strict=True):
                sums[place] = value
        found, at = [], 0
        for name, given, made in self._calls:
            found.append(Call(name, tuple(sums[at : at + given]), tuple(sums[at + given : at + given + made])))
            at += given + made
        return found


def summable(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.element_size() in INTEGERS and not tensor.is_quantized


def bit_sum(tensor: Tensor) -> Tensor:
    """A sum over the bits of its elements as integers: in any order the same. int64, on the
    tensor's device."""
    return tensor.detach().contiguous().view(INTEGERS[tensor.element_size()]).sum(dtype=torch.int64)


def differing(run: Callable[[], object]) -> dict[str, int]:
    """Returns how many calls of which operations returned different bits for equal inputs. Other
    names mean that the two runs were different from that point."""
    runs = []
    for _ in range(2):
        with Recorder() as recorder:
            run()
        runs.append(recorder.calls())
    found: Counter[str] = Counter()
    for first, second in zip(*runs, strict=False):
        if (first.name, len(first.given)) != (second.name, len(second.given)):
            found[f"{first.name} in one run, {second.name} in the other"] += 1
            break
        if first.given == second.given and first.made != second.made:
            found[first.name] += 1
    return dict(found)
