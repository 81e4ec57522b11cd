"""The state of sample sources (samplers, streams, generators), as far as it is accessible.

Objects with ``state_dict()`` and ``load_state_dict()`` provide it. For other objects, the random
generators inside them are saved at any depth: a stream may consist of other streams, and an
iterable may leave its order to another object. An example is ``RandomSampler(generator=...)``,
whose generator continues from pass to pass.
"""

from __future__ import annotations

import copy
import inspect
import random
import re
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lockstep._base.held import Held, root, walk

_PROCESS_GENERATORS: tuple[Any, ...] = (
    torch.default_generator,
    numpy.random.get_state.__self__,  # type: ignore[attr-defined]
    random.getstate.__self__,  # type: ignore[attr-defined]
)
OF_PROCESS = {id(generator) for generator in _PROCESS_GENERATORS}
"""The ids of the process's own generators, which are reseeded at each draw."""
_MOST_OBJECTS = 5000
"""The number of objects, nearest first, that are searched for generators."""
_MOST_ITEMS = 128
"""The largest number of items of a searched container. Longer ones contain data."""


def has_state(source: Any) -> bool:
    """Returns whether an object has ``state_dict()`` and ``load_state_dict(state)``. (The
    ``state_dict`` of MosaicML's StreamingDataset requires the number of used samples: that is
    another interface.)"""
    take, put = getattr(source, "state_dict", None), getattr(source, "load_state_dict", None)
    if not callable(take) or not callable(put):
        return False
    try:
        inspect.signature(take).bind()
    except TypeError:
        return False
    except ValueError:  # one written in C may have no signature
        pass
    return True


def is_generator(source: Any) -> bool:
    """Returns whether an object is a random generator of PyTorch, NumPy or Python."""
    return isinstance(source, (torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState))


def take_state(source: Any) -> Any:
    """Returns a copy of the state of an object or generator."""
    if isinstance(source, torch.Generator):
        return source.get_state()
    if isinstance(source, random.Random):
        return source.getstate()
    if is_generator(source):
        return source.bit_generator.state if hasattr(source, "bit_generator") else source.get_state(legacy=False)
    if has_state(source):
        return copy.deepcopy(source.state_dict())
    return {path: take_state(generator) for path, generator in generators_within(source).items()}


def generators_of(source: Any) -> dict[str, Any]:
    """Returns the random generators among an object's attributes, by name."""
    return {name: value for name, value in getattr(source, "__dict__", {}).items() if is_generator(value)}


def generators_within(source: Any) -> dict[str, Any]:
    """Returns the random generators inside an object, at any depth, by path. Generators of the
    process are left out, and so are models, whose draws do not belong to the data."""
    found: dict[str, Any] = {}
    for held in walk([root(source)], _is_searched, most=_MOST_OBJECTS):
        if is_generator(held.value) and id(held.value) not in OF_PROCESS:
            path = _path(held)
            while path in found:  # variables of two functions may have one name
                path += "'"
            found[path] = held.value
    return found


def _path(held: Held) -> str:
    """Returns the path of an object, the same in every process."""
    return re.sub(r"<(\w+) \d+>", r"<\1>", held.path)


def _is_searched(value: Any) -> bool:
    """Returns whether an object is searched for generators."""
    if isinstance(value, (Tensor, numpy.ndarray, Optimizer, set, frozenset)) or is_generator(value):
        return False  # (the order of a set differs from process to process)
    # A model's dropout draws from the process's generators, but a module without parameters may be
    # a transform of the data.
    if isinstance(value, nn.Module):
        return next(value.parameters(), None) is None
    if isinstance(value, (list, tuple, dict)):
        return len(value) <= _MOST_ITEMS
    return type(value).__module__.partition(".")[0] != "lockstep"


def put_state(source: Any, state: Any) -> None:
    """Restores a state that ``take_state`` returned for an object or generator of the same kind."""
    if isinstance(source, torch.Generator):
        source.set_state(state)
    elif isinstance(source, random.Random):
        source.setstate(state)
    elif is_generator(source):
        if hasattr(source, "bit_generator"):
            source.bit_generator.state = state
        else:
            source.set_state(state)
    elif has_state(source):
        # A copy: some classes modify the state, and it may be restored again.
        source.load_state_dict(copy.deepcopy(state))
    else:
        now = generators_within(source)
        for path, value in state.items():
            if path in now:
                put_state(now[path], value)
            else:
                _make(source, path, value)


def _make(source: Any, path: str, state: Any) -> None:
    """Creates a generator with a state at a path. The object made one there after its ``__init__``,
    for example in its first pass."""
    above, _, name = path.rpartition(".")
    for held in [root(source)] if not above else walk([root(source)], _is_searched, most=_MOST_OBJECTS):
        if (not above or _path(held) == above) and hasattr(held.value, "__dict__"):
            vars(held.value)[name] = generator = _generator_like(state)
            put_state(generator, state)
            return


def _generator_like(state: Any) -> Any:
    """Returns a new generator of the kind that has such a state."""
    if isinstance(state, Tensor):
        return torch.Generator()
    if not isinstance(state, dict):
        return random.Random()
    if "has_gauss" in state:
        return numpy.random.RandomState()
    return numpy.random.Generator(getattr(numpy.random, state["bit_generator"])())
