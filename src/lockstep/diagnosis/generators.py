"""Random generators that are none of the streams: which there are, and when one has been drawn from."""

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
    """The generators that lockstep starts anew at every place."""
    numpy = sys.modules.get("numpy")
    streams = [random._inst, torch.default_generator, *torch.cuda.default_generators]
    return streams if numpy is None else [*streams, numpy.random.mtrand._rand]


def state_of_streams() -> list[Any]:
    """What all of them would draw next."""
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


def what(generator: Any) -> str:
    """What a generator is, in words."""
    kind = type(generator)
    name = {"_generator": "numpy.random.Generator", "mtrand": "numpy.random.RandomState"}.get(kind.__module__.split(".")[-1])
    return f"a {name or f'{kind.__module__.removesuffix(chr(46) + chr(95) + chr(67))}.{kind.__name__}'} of the script"


class Generators:
    """The living generators that are not streams, with the state that each was last seen in."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any]] = {}

    def look_around(self, *, thoroughly: bool) -> None:
        """Find those that came to be. Thoroughly takes a second, and finds PyTorch's too (the collector does not know
        them)."""
        kinds = _kinds()
        objects: list[Any] = gc.get_objects()
        if thoroughly:
            objects = gc.get_referents(*objects)
        for generator in objects:
            if type(generator) in kinds and id(generator) not in self._known and not _is_stream(generator):
                self._known[id(generator)] = (generator, _state(generator))

    def refresh(self) -> None:
        """Take all states as they are."""
        self._known = {key: (generator, _state(generator)) for key, (generator, _) in self._known.items()}

    def drawn(self) -> Iterator[Any]:
        """Those that were drawn from since the last look."""
        for key, (generator, before) in self._known.items():
            now = _state(generator)
            if now != before:
                self._known[key] = (generator, now)
                yield generator
