"""The threads of native libraries in this process: BLAS (NumPy's, and SciPy's own) and OpenMP.

PyTorch's own number is set with ``torch.set_num_threads``, which does not reach NumPy's BLAS: there, too, a product has other
bits with another number of threads. Both follow one number. Nothing in this file starts a parallel region.

A library counts its threads when it is loaded. One that is loaded later than ``use_threads`` (by an import in the middle of
the script) is found at the next look, and takes the number then.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from threadpoolctl import ThreadpoolController

_libraries: tuple[Any, ...] = ()
"""Threadpoolctl's controllers of the libraries that are loaded. (A copy of them is right in a forked child as well.)"""
_num_modules = -1
"""How many modules were imported at the last look: to look takes some milliseconds, and to count them next to nothing."""
_number: int | None = None
"""What ``use_threads`` was told."""


def libraries() -> tuple[Any, ...]:
    """Controllers of the libraries that are loaded now. One that is new takes the number of ``use_threads``."""
    global _libraries, _num_modules
    if len(sys.modules) != _num_modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of OpenMPs that do not go together: not ours to say
            found = ThreadpoolController().lib_controllers
        known, _libraries, _num_modules = {library.filepath for library in _libraries}, tuple(found), len(sys.modules)
        if _number is not None:
            for library in found:
                if library.filepath not in known:
                    set_number(library, _number)
    return _libraries


def use_threads(number: int) -> None:
    """Have all libraries use so many threads, those that are loaded later too. PyTorch's own number is set by others."""
    global _number
    _number = number
    for library in libraries():
        set_number(library, number)


def set_number(library: Any, number: int) -> None:
    """Give one library another number of threads."""
    # Asked first: right after a fork, OpenBLAS makes all threads that it ever had to be told that it needs one.
    if library.num_threads != number:
        _set(library, number)


def _set(library: Any, number: int) -> None:
    library.set_num_threads(number)
    # Threadpoolctl (3.8) would from now on heed no other thread of Python that sets a number.
    clear = getattr(library, "clear_controlling_thread", None)
    if clear is not None:
        clear()


class Lowered:
    """All libraries use one thread, from now on until ``put_back``."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = [(library, number) for library in libraries() if (number := library.num_threads) != 1]
        for library, _ in self._before:
            _set(library, 1)

    @property
    def has_changed(self) -> bool:
        """Whether some had another number."""
        return bool(self._before)

    def put_back(self) -> None:
        """Give them the numbers back that they had. Does nothing a second time."""
        while self._before:
            _set(*self._before.pop())
