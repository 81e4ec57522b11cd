"""Programs: recorded operations that run on the samples of a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep._base.errors import UsageError
from lockstep.integrations.accelerate._context import Context
from lockstep.integrations.accelerate._promise import Node, Promise, leaf, promises_in, replaced


class PerShard:
    """A function, usually a model, that runs once per shard and whose results are kept.

    Other operations may be computed again when the script reads a value. A model must not be: it
    is slow, and dropout would draw other random numbers.

    Args:
        function: the function, which is called with values instead of promises.
        stamp: returns a value that must not change between recording the call and making it.
        name: the name for errors.
    """

    def __init__(self, function: Callable[..., Any], stamp: Callable[[], Any], name: str) -> None:
        self._function = function
        self._stamp = stamp
        self._noted = stamp()
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the function's result.

        Raises:
            UsageError: the stamp changed after the call was recorded.
        """
        if (now := self._stamp()) != self._noted:
            raise UsageError(
                "the model's weights or training mode changed between its call and accelerator.backward() (from "
                f"{self._noted} to {now}). backward() computes the call, so its result would differ. Change weights and "
                "modes after accelerator.backward().",
                code="model-changed",
            )
        return self._function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PerShard) and self._function == other._function and self._noted == other._noted

    def __hash__(self) -> int:
        return hash(self._function)


@dataclass(frozen=True, slots=True)
class _Result:
    """A placeholder in arguments for the result of an earlier operation."""

    number: int


@dataclass(slots=True)
class _Step:
    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: Context
    is_again: bool
    """Whether an earlier phase computed this step as well."""


class Program:
    """Operations in the order in which they were recorded.

    A program contains no promises. So the script alone decides how long a promise lives, and values
    that it has dropped are not computed.

    Args:
        targets: the nodes to compute.
    """

    def __init__(self, targets: Sequence[Node]) -> None:
        self.targets = [node.number for node in targets]
        self._steps = {
            node.number: _Step(node.call, _open(node.args), _open(node.kwargs), node.context, node.was_run)
            for node in needed(targets)
        }

    def run(self, data: Any, memo: dict[int, Any], targets: Iterable[int] | None = None, *, gradients: bool = True) -> None:
        """Computes the targets, and all operations that they need, on the samples ``data``.

        Args:
            data: the samples of the shard.
            memo: the results by number, to which new results are added.
            targets: the numbers of the nodes to compute; None: all targets of the program.
            gradients: whether to build a graph where gradients were on when the operation was
                recorded.
        """
        wanted = self._needed(self.targets if targets is None else targets, memo)
        for number in wanted:
            step = self._steps[number]
            if step.call is leaf:
                memo[number] = follow(step.args, data)
                continue
            args, kwargs = _filled(step.args, memo), _filled(step.kwargs, memo)
            before = torch.get_rng_state() if step.is_again else None
            with step.context.again(gradients=gradients):
                memo[number] = step.call(*args, **kwargs)
            if before is not None and not torch.equal(before, torch.get_rng_state()):
                raise UsageError(
                    f"{getattr(step.call, '__name__', step.call)} draws random numbers, and an earlier accelerator.backward() "
                    "of this batch already computed it. This one would draw different numbers. Repeat the line between the "
                    "two backward() calls.",
                    code="random-numbers-twice",
                )

    def _needed(self, targets: Iterable[int], memo: dict[int, Any]) -> list[int]:
        found: set[int] = set()
        todo = list(targets)
        while todo:
            number = todo.pop()
            if number not in found and number not in memo:
                found.add(number)
                todo += _results_in((self._steps[number].args, self._steps[number].kwargs))
        return sorted(found)

    def shares_call(self, other: Program, number: int) -> bool:
        """Returns whether an operation is a call of a ``PerShard`` function that another program
        makes as well, on the same values."""
        if number not in self._steps or number not in other._steps or not isinstance(self._steps[number].call, PerShard):
            return False
        numbers = self._needed([number], {})
        return numbers == other._needed([number], {}) and all(_same_step(self._steps[n], other._steps[n]) for n in numbers)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Program)
            and self.targets == other.targets
            and self._steps.keys() == other._steps.keys()
            and all(_same_step(step, other._steps[number]) for number, step in self._steps.items())
        )

    __hash__ = None  # type: ignore[assignment]


def needed(targets: Iterable[Node]) -> list[Node]:
    """Returns the targets and the nodes that they depend on, in the order in which they were
    recorded."""
    found: dict[int, Node] = {}
    todo = list(targets)
    while todo:
        node = todo.pop()
        if node.number not in found:
            found[node.number] = node
            if node.call is not leaf:
                todo += [promise._node for promise in promises_in((node.args, node.kwargs)) if not promise._node.is_constant]
    return [found[number] for number in sorted(found)]


def follow(path: Sequence[Any], data: Any) -> Any:
    """Returns the part of ``data`` at a path of keys and indices."""
    for key in path:
        data = data[key]
    return data


def _open(tree: Any) -> Any:
    def opened(promise: Promise) -> Any:
        return promise._node.value if promise._node.is_constant else _Result(promise._node.number)

    return replaced(tree, opened)


def _results_in(tree: Any) -> list[int]:
    if isinstance(tree, _Result):
        return [tree.number]
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, slice):
        tree = [tree.start, tree.stop, tree.step]
    return [number for item in tree for number in _results_in(item)] if isinstance(tree, (list, tuple)) else []


def _filled(tree: Any, memo: dict[int, Any]) -> Any:
    if isinstance(tree, _Result):
        return memo[tree.number]
    if not _results_in(tree):
        return tree
    if isinstance(tree, dict):
        return {key: _filled(value, memo) for key, value in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_filled(value, memo) for value in (tree.start, tree.stop, tree.step)))
    items = [_filled(item, memo) for item in tree]
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def _same_step(a: _Step, b: _Step) -> bool:
    return a.call == b.call and a.context == b.context and _same((a.args, a.kwargs), (b.args, b.kwargs))


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(a, (str, int, float, bool, _Result, torch.dtype, torch.device, slice)) and a == b
