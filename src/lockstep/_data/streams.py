"""Random streams that belong to a key, which identifies a point in the run, and not to a process.

::

    key = (purpose, loader, step, shard, part)     for example (FETCH, 1, 40, 3, 0)
    value = mix(... mix(mix(seed) + purpose) ... + part)      64 bits
    -> torch.manual_seed(value), on the CPU and each GPU; numpy.random.seed; random.seed

Every generator that user code can reach is reseeded at each key: a shard's training code, the
fetching of its samples, the sampler's draws, an evaluation batch. So the numbers that user code
draws depend on the run's seed and the key alone. They do not depend on the rank, the number of
processes or loader workers, or on what other shards have drawn before.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from lockstep._world import devices

_MASK = (1 << 64) - 1


class Purpose(enum.IntEnum):
    """The purpose of a stream. Streams with equal keys but different purposes differ."""

    START = 0
    TRAIN = 1
    FETCH = 2
    SAMPLER = 3
    TAIL = 4
    """The code after a loop over a loader: evaluation, per-epoch schedules."""
    EVALUATE = 5
    EPOCH = 6
    """The code before a loop over a loader, in each epoch of ``team.epochs()``."""
    STEP = 7
    """The code of a step outside of ``batch.shards``: the same on every rank."""
    SET_EPOCH = 8
    """``set_epoch`` of a dataset, which loader workers call on their copies."""

    __hash__ = int.__hash__
    """The hash of an Enum is a function in Python, which each start of a stream would call."""


def _mix(value: int) -> int:
    # The finalizer of SplitMix64 (Steele, Lea, Flood 2014): changing one input bit changes half of
    # the output bits.
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def derive(*key: int) -> int:
    """Returns a 64-bit seed for a key of integers. Seeds of different keys are independent in all
    bits."""
    # The odd constant (2**64 divided by the golden ratio) separates keys that differ by zeros: (0,)
    # and (0, 0).
    value = 0
    for part in key:
        value = _mix((value + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK)
    return value


def script_seed() -> int | None:
    """Returns the seed that the script passed to ``torch.manual_seed`` before ``join``; None: none
    can be detected.

    PyTorch starts with 64 random bits from the system, while seeds that people choose are below
    2**32, as NumPy requires."""
    seed = torch.initial_seed()
    return seed if seed < 2**32 else None


_gpus: tuple[int, ...] = ()
"""The GPUs whose generators this process reseeds; empty: the current one."""


def draw_on(chosen: Iterable[torch.device]) -> None:
    """Sets the devices of this process, whose generators are reseeded from now on."""
    global _gpus
    _gpus = tuple(dict.fromkeys(device.index for device in chosen if device.type != "cpu"))


_STEP_AT = {Purpose.TRAIN: 0, Purpose.STEP: 0, Purpose.FETCH: 1}
"""The position of the step in the keys of the streams that every step starts."""
_AHEAD = 64
"""The number of steps whose seeds are derived together."""


@functools.lru_cache(maxsize=4096)  # a tuple of seeds takes 2.5 KB
def _seeds(start: tuple[int, ...], block: int, rest: tuple[int, ...]) -> tuple[int, ...]:
    """Returns ``derive(*start, step, *rest)`` for each step of a block: from ``block * _AHEAD``
    on."""
    # In one step after another, most of derive() is Python's integers. Sums and products of NumPy's
    # arrays of uint64 are modulo 2**64, without a warning.
    numpy = sys.modules["numpy"]
    values = numpy.arange(_AHEAD, dtype=numpy.uint64)
    for part in (derive(*start) + block * _AHEAD, *rest):  # as in derive(), written out
        values = values + numpy.uint64((part + 0x9E3779B97F4A7C15) & _MASK)
        values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        values = values ^ (values >> numpy.uint64(31))
    return tuple(values.tolist())


_generator: Any = random.seed.__self__  # type: ignore[attr-defined]
"""The generator behind the functions of the module ``random``."""
_seed_generator = super(random.Random, _generator).seed
"""Seeds it as ``random.seed``, which first looks at the kind of its seed, and at last forgets what
``random.gauss`` has left."""


def reseed(seed: int, purpose: Purpose, *key: int) -> None:
    """Starts the streams of a key in this process. Cheap enough for every micro-batch (some 9
    µs)."""
    numpy, at = sys.modules.get("numpy"), _STEP_AT.get(purpose)
    if at is None or numpy is None:
        start_streams(derive(seed, purpose, *key))
    else:
        block, number = divmod(key[at], _AHEAD)
        start_streams(_seeds((seed, purpose, *key[:at]), block, key[at + 1 :])[number])


def start_streams(value: int) -> None:
    """Starts the streams of a key of which ``value`` is the seed (``derive``)."""
    torch.default_generator.manual_seed(value)
    on_gpu = devices.in_use()
    if on_gpu is not None:
        on_gpu.manual_seed(value)  # on the current GPU, which is the first of this process
        # By position in the list, not by device index, which depends on the machine. Each GPU gets
        # another seed: equal layers on two GPUs must not draw equal dropout masks.
        for number, gpu in enumerate(_gpus[1:], 1):
            with torch.accelerator.device_index(gpu):
                on_gpu.manual_seed(_mix(value + number))
    numpy = sys.modules.get("numpy")
    if numpy is not None:  # user code that has not imported it cannot draw from it
        numpy.random.seed(value & 0xFFFFFFFF)  # NumPy accepts 32 bits
    _seed_generator(value)
    _generator.gauss_next = None  # the second number of a pair that random.gauss() has drawn


@contextlib.contextmanager
def preserve_rng() -> Iterator[None]:
    """Returns a context after which all streams continue as if nothing had been reseeded or drawn
    inside."""
    restore = remember_rng()
    try:
        yield
    finally:
        restore()


def remember_rng() -> Callable[[], None]:
    """Returns a function that puts all streams back to their present states."""
    cpu = torch.default_generator.get_state()
    on_gpu = devices.in_use()
    gpus = () if on_gpu is None else _gpus or (torch.accelerator.current_device_index(),)
    states = [on_gpu.get_rng_state(gpu) for gpu in gpus]
    numpy = sys.modules.get("numpy")
    array = None if numpy is None else numpy.random.get_state()
    plain = random.getstate()

    def restore() -> None:
        torch.default_generator.set_state(cpu)
        for gpu, state in zip(gpus, states, strict=True):
            on_gpu.set_rng_state(state, gpu)
        if numpy is not None:
            numpy.random.set_state(array)
        random.setstate(plain)

    return restore
