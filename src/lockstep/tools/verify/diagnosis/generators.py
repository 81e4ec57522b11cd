"""Random generators that lockstep does not reseed: finds them, and notices when one is drawn from."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch


def _kinds() -> tuple[type, ...]:
    kinds: list[type] = [random.Random, torch.Generator]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kinds += [numpy.random.Generator, numpy.random.RandomState]
    return tuple(kinds)


def _streams() -> list[Any]:
    """The generators that lockstep reseeds."""
    numpy = sys.modules.get("numpy")
    streams = [random._inst, torch.default_generator, *torch.cuda.default_generators]
    return streams if numpy is None else [*streams, numpy.random.mtrand._rand]


def state_of_streams() -> list[Any]:
    """The states of the generators that lockstep reseeds."""
    return [_state(stream) for stream in _streams()]


def _is_stream(generator: Any) -> bool:
    return any(generator is stream for stream in _streams())


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    bits = getattr(generator, "bit_generator", None)
    return repr(bits.state) if bits is not None else repr(generator.get_state())


def describe(generator: Any) -> str:
    """The kind of a generator, in words."""
    kind = type(generator)
    name = {"_generator": "numpy.random.Generator", "mtrand": "numpy.random.RandomState"}.get(kind.__module__.split(".")[-1])
    return f"a {name or f'{kind.__module__.removesuffix(chr(46) + chr(95) + chr(67))}.{kind.__name__}'} of the script"


class Generators:
    """The generators in memory that lockstep does not reseed, with their last known states."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def find(self, *, thoroughly: bool) -> None:
        """Find new ones. ``thoroughly`` takes a second and also finds PyTorch's, which the garbage collector does not track."""
        kinds = _kinds()
        objects: list[Any] = gc.get_objects()
        if thoroughly:
            objects = gc.get_referents(*objects)
        for generator in objects:
            if type(generator) in kinds and id(generator) not in self._known and not _is_stream(generator):
                self._known[id(generator)] = (generator, _state(generator))

    def refresh(self) -> None:
        """Update all states."""
        self._known = {key: (generator, _state(generator)) for key, (generator, _) in self._known.items()}

    def drawn(self) -> Iterator[Any]:
        """The generators that were drawn from since their state was last updated."""
        for key, (generator, before) in self._known.items():
            now = _state(generator)
            if now != before:
                self._known[key] = (generator, now)
                yield generator
