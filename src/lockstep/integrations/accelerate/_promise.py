"""Promises: values that a training loop computes from a batch, recorded now and computed later.

A loop for accelerate has one body per batch, and no inner loop over shards. lockstep must compute
the body once per shard, because results may depend only on the number of shards. So the lines of
the body do not compute: they record operations (``Node``), and ``accelerator.backward(loss)``
computes them for each shard::

    line of the script             recorded                computed in backward, per shard
    outputs = model(x)             model(x)                model(x of the shard)
    loss = criterion(outputs, y)   criterion(outputs, y)   the shard's loss, and its gradient
    accelerator.backward(loss)     -                       (all lines above)
    loss.item()                    -                       the mean over all shards is known

A promise therefore has no value before ``backward``, and a line that needs one is an error."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from lockstep._base.errors import UsageError
from lockstep.integrations.accelerate._context import Context


class Source(Protocol):
    """The batch that promises are computed from."""

    device: torch.device
    """The device of the samples."""
    serial: int
    """The number of the batch in this launch."""

    is_evaluated: bool
    """Whether the operations also run on other batches, so that a value of this batch must not
    replace its operation."""

    @property
    def is_ready(self) -> bool:
        """Whether ``value`` can be called."""

    def value(self, node: Node) -> Any:
        """Computes a value over the global batch, equal on every rank. Every rank must call it.

        Raises:
            UsageError: the value is not known yet.
        """

    def add(self, node: Node) -> int:
        """Records a node and returns its number in the batch."""

    def check_constant(self, value: Tensor) -> None:
        """Checks a tensor of the script that an operation uses together with promises.

        Raises:
            UsageError: the tensor has a graph, which each shard would run backward.
        """


class Node:
    """A recorded operation: a function and its arguments, some of which are promises.

    Args:
        source: the batch from which it is computed.
        call: the function; ``leaf`` for a part of the batch.
        args: the arguments; for a leaf, its path in the batch.
        kwargs: the keyword arguments.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "call",
        "context",
        "has_value",
        "kwargs",
        "number",
        "parts",
        "results",
        "source",
        "value",
        "was_run",
    )

    def __init__(self, source: Source, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.source, self.call, self.args, self.kwargs = source, call, args, kwargs
        self.context = Context.now(source.device.type)
        self.number = source.add(self)
        """The number of the operation in its batch."""
        self.was_run = False
        """Whether the shards have computed the operation."""
        self.results: list[tuple[int, int, Any]] | None = None
        """The values of this process's shards, each with the shard's number and its number of
        samples; None: not kept."""
        self.parts: dict[Any, weakref.ref[Node] | Node] = {}
        """The recorded attributes and items of this value, so that ``outputs.loss`` is the same
        node each time. Only parts with a value are kept by a strong reference."""
        self.value: Any = None
        """The value over the global batch."""
        self.has_value = False

    def settle(self, value: Any) -> None:
        """Sets the value, and releases the arguments from which it was computed."""
        self.value, self.has_value = value, True
        if not self.source.is_evaluated:
            self.results = None
            self.let_go()

    @property
    def name(self) -> str:
        """The operation as the script writes it, for errors."""
        if self.call is leaf:
            return f"batch[{self.args[-1]!r}]" if self.args else "batch"
        if self.call in (call_method, getattr) and len(self.args) > 1:
            return f".{self.args[1]}{'(...)' if self.call is call_method else ''}"
        return f"{getattr(self.call, '__name__', type(self.call).__name__)}(...)"

    @property
    def is_constant(self) -> bool:
        """Whether other operations use the value instead of the operation."""
        return self.has_value and not self.source.is_evaluated

    def let_go(self) -> None:
        """Releases the arguments, which the program of a backward pass contains."""
        if is_part(self.call, self.args):
            self.args[0]._node.parts[self.call, self.args[1]] = self
        self.args, self.kwargs = (), {}


class Promise:
    """A node as the script sees it.

    Operators, methods, attributes and torch functions of a promise return another promise. A use
    that needs a number (``item()``, ``float()``, ``if``) returns the value over the global batch
    if it is known, and raises an error otherwise."""

    __slots__ = ("_node",)
    _node: Node

    def __init__(self, node: Node) -> None:
        object.__setattr__(self, "_node", node)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return note(function, *args, **(kwargs or {}))

    # Uses that return a promise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "device":
            return self._node.source.device
        if name == "mT" or not name.endswith("_"):
            return note(getattr, self, name)
        return _refuse_in_place(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a promise of the call."""
        if self._node.call is getattr:
            # loss.detach() is getattr(loss, "detach") and then this call. As one operation, it has
            # a name in errors, and the bound method is not a value of its own.
            owner, name = self._node.args
            return note(call_method, owner, name, *args, **kwargs)
        return note(call, self, *args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return note(operator.getitem, self, key)

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Returns this promise for a device, since shards are on ``accelerator.device`` already;
        for a dtype, another promise."""
        given = [*args, *kwargs.values()]
        if any(isinstance(value, (torch.dtype, Tensor, Promise)) for value in given):
            return note(call_method, self, "to", *args, **kwargs)
        return self

    def cuda(self, *_: Any, **__: Any) -> Promise:
        """Returns this promise, since shards are on ``accelerator.device`` already."""
        return self

    # Uses that need the value

    def item(self) -> Any:
        """Returns the number over the global batch, equal on every rank."""
        value = value_of(self)
        return value.item() if isinstance(value, Tensor) else value

    def tolist(self) -> Any:
        """Returns ``tolist()`` of the value."""
        return value_of(self).tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        """Returns ``numpy()`` of the value."""
        return value_of(self).numpy(*args, **kwargs)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return value_of(self).__array__(*args, **kwargs)

    def __bool__(self) -> bool:
        return bool(value_of(self))

    def __len__(self) -> int:
        return len(value_of(self))

    def __float__(self) -> float:
        return float(value_of(self))

    def __int__(self) -> int:
        return int(value_of(self))

    def __index__(self) -> int:
        return operator.index(value_of(self))

    def __iter__(self) -> Iterator[Any]:
        return iter(value_of(self))

    def __contains__(self, item: Any) -> bool:
        return item in value_of(self)

    def __format__(self, spec: str) -> str:
        value = value_of(self)
        return format(value.item() if isinstance(value, Tensor) and value.ndim == 0 else value, spec)

    def __str__(self) -> str:
        return str(value_of(self)) if self._node.has_value or self._node.source.is_ready else repr(self)

    def __repr__(self) -> str:
        node = self._node
        return f"<{node.value}>" if node.has_value else f"<{node.name}, computed per shard>"

    # Uses that would change a value in place, which other recorded operations read

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        _refuse_in_place("x[...] = y")

    def __delitem__(self, key: Any) -> NoReturn:
        _refuse_in_place("del x[...]")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        _refuse_in_place(f"x.{name} = y")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UsageError(
            "a value of a batch that is computed per shard cannot be pickled or copied. After accelerator.backward(), read "
            "its number: loss.item().",
            code="promise-copied",
        )


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function that was a promise."""
    return function(*args, **kwargs)


def call_method(owner: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a method of a value that was a promise."""
    return getattr(owner, name)(*args, **kwargs)


def leaf(*_: Any) -> NoReturn:
    """Marks a node as a part of the batch, which is read instead of computed."""
    raise AssertionError("a part of the batch is read, not called")


_OPERATORS = ("add_", "sub_", "mul_", "div_")


def note(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Records ``function(*args, **kwargs)`` and returns its promise; if the values of all promises
    among the arguments are known, calls the function and returns its value.

    Raises:
        UsageError: the function changes a tensor in place, or the arguments are unknown values of
            two batches.
    """
    name = getattr(function, "__name__", "")
    if "out" in kwargs or name in ("__setitem__", "__delitem__") or (name.endswith("_") and not name.endswith("__")):
        if not all(promise._node.has_value or promise._node.source.is_ready for promise in promises_in((args, kwargs))):
            # PyTorch makes the same call for `total += loss` as for `total.add_(loss)`.
            _refuse_in_place("+= or another in-place operation" if name in _OPERATORS else name)
        return function(*replaced(args, value_of), **replaced(kwargs, value_of))
    unknown = [promise._node for promise in promises_in((args, kwargs)) if not promise._node.has_value]
    source = unknown[-1].source if unknown else None
    # The operation belongs to the newest batch. Values of older batches are read now: later, their
    # shards are no longer available.
    for node in unknown:
        if source is not None and node.source.serial > source.serial:
            source = node.source

    def current(promise: Promise) -> Any:
        return promise if promise._node.source is source and not promise._node.is_constant else value_of(promise)

    args, kwargs = replaced(args, current), replaced(kwargs, current)
    if source is None:
        return function(*args, **kwargs)
    for tensor in tensors_in((args, kwargs)):
        source.check_constant(tensor)
    if not is_part(function, args):
        return Promise(Node(source, function, args, kwargs))
    parts, key = args[0]._node.parts, (function, args[1])
    known = parts.get(key)
    part: Node | None = known() if isinstance(known, weakref.ref) else known
    if part is None:
        part = Node(source, function, args, kwargs)
        parts[key] = weakref.ref(part)
    return Promise(part)


def is_part(call: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Returns whether a recorded operation reads an attribute or an item of a promise."""
    return (
        len(args) == 2
        and call in (getattr, operator.getitem)
        and isinstance(args[0], Promise)
        and isinstance(args[1], (str, int))
    )


def value_of(promise: Promise) -> Any:
    """Returns the value over the global batch, equal on every rank. Every rank must call it.

    Raises:
        UsageError: the value is not known yet.
    """
    node = promise._node
    if not node.has_value:
        node.settle(node.source.value(node))
    return node.value


def promises_in(tree: Any) -> Iterator[Promise]:
    """Yields the promises in lists, tuples, dicts and slices."""
    if isinstance(tree, Promise):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from promises_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from promises_in(item)
    elif isinstance(tree, slice):
        yield from promises_in((tree.start, tree.stop, tree.step))


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yields the tensors in lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))


def replaced(tree: Any, get: Callable[[Promise], Any]) -> Any:
    """Returns the tree with ``get(promise)`` instead of each promise. A tree without promises is
    returned unchanged."""
    if isinstance(tree, Promise):
        return get(tree)
    if next(promises_in(tree), None) is None:
        return tree
    if isinstance(tree, dict):
        return {key: replaced(value, get) for key, value in tree.items()}
    if isinstance(tree, slice):
        return slice(*(replaced(value, get) for value in (tree.start, tree.stop, tree.step)))
    items = [replaced(value, get) for value in tree]
    return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)


def _refuse_in_place(what: str) -> NoReturn:
    raise UsageError(
        f"{what} changes a tensor in place and uses a value that accelerator.backward() computes later. Compute a new value "
        "(total = total + loss.detach(), x = torch.where(mask, y, x)), or move the line after accelerator.backward().",
        code="in-place-before-backward",
    )


def _operators() -> None:
    """Adds the operators of tensors to ``Promise``, whose ``x += y`` then means ``x = x + y``."""
    unary = ("neg", "pos", "abs", "invert")
    binary = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
    for name in (*unary, *binary, "eq", "ne", "lt", "le", "gt", "ge"):
        of = getattr(operator, f"__{name}__")

        def method(*args: Any, _of: Callable[..., Any] = of) -> Any:
            return note(_of, *args)

        setattr(Promise, f"__{name}__", method)
        if name in binary:

            def reflected(self: Promise, other: Any, _of: Callable[..., Any] = of) -> Any:
                return note(_of, other, self)

            setattr(Promise, f"__r{name}__", reflected)


_operators()
