"""The state of what samples come from: samplers, streams and generators, as far as they let it be seen.

An object with ``state_dict()`` and ``load_state_dict()`` is asked. Of others, the random generators among their
attributes are looked at (a ``RandomSampler(generator=...)`` has one, and it goes on from pass to pass).
"""

from __future__ import annotations

import copy
import random
import sys
from typing import Any

import torch


def has_state(thing: Any) -> bool:
    """Whether an object says what its state is, and takes one."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def is_generator(thing: Any) -> bool:
    """Whether it is a random generator, of PyTorch, numpy or Python."""
    numpy = sys.modules.get("numpy")
    kinds = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    return isinstance(thing, (torch.Generator, random.Random, *kinds))


def take_state(thing: Any) -> Any:
    """The state of an object or generator, as a value that later changes of the object leave alone."""
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    if isinstance(thing, random.Random):
        return thing.getstate()
    if is_generator(thing):
        return thing.bit_generator.state if hasattr(thing, "bit_generator") else thing.get_state(legacy=False)
    if has_state(thing):
        return copy.deepcopy(thing.state_dict())
    attributes = getattr(thing, "__dict__", {})
    return {name: take_state(value) for name, value in attributes.items() if is_generator(value)}


def put_state(thing: Any, state: Any) -> None:
    """Give an object or generator a state that ``take_state`` took of its like."""
    if isinstance(thing, torch.Generator):
        thing.set_state(state)
    elif isinstance(thing, random.Random):
        thing.setstate(state)
    elif is_generator(thing):
        if hasattr(thing, "bit_generator"):
            thing.bit_generator.state = state
        else:
            thing.set_state(state)
    elif has_state(thing):
        thing.load_state_dict(state)
    else:
        for name, value in state.items():
            put_state(getattr(thing, name), value)
