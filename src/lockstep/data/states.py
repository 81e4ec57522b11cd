"""The state of sample sources (samplers, streams, generators), as far as it is accessible.

Objects with ``state_dict()`` and ``load_state_dict()`` provide it. Of other objects, the random generators among their
attributes are saved (that of a ``RandomSampler(generator=...)``, say, which continues from pass to pass).
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
from typing import Any

import torch


def has_state(source: Any) -> bool:
    """Whether an object has ``state_dict()`` and ``load_state_dict(state)``. (MosaicML's StreamingDataset has a ``state_dict``
    that must be told how many samples were used: that is another thing.)"""
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
    """Whether an object is a random generator of PyTorch, NumPy or Python."""
    numpy = sys.modules.get("numpy")
    kinds = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    return isinstance(source, (torch.Generator, random.Random, *kinds))


def take_state(source: Any) -> Any:
    """A copy of the state of an object or generator."""
    if isinstance(source, torch.Generator):
        return source.get_state()
    if isinstance(source, random.Random):
        return source.getstate()
    if is_generator(source):
        return source.bit_generator.state if hasattr(source, "bit_generator") else source.get_state(legacy=False)
    if has_state(source):
        return copy.deepcopy(source.state_dict())
    return {name: take_state(value) for name, value in generators_of(source).items()}


def generators_of(source: Any) -> dict[str, Any]:
    """The random generators among an object's attributes, by name."""
    return {name: value for name, value in getattr(source, "__dict__", {}).items() if is_generator(value)}


def put_state(source: Any, state: Any) -> None:
    """Restore a state that ``take_state`` returned for an object or generator of the same kind."""
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
        source.load_state_dict(copy.deepcopy(state))  # some take theirs apart, and it may be put again
    else:
        for name, value in state.items():
            put_state(getattr(source, name), value)
